//! The partition of a key, as Java's clients choose it.

/// Seed of the hash in `org.apache.kafka.common.utils.Utils.murmur2`.
const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;

/// `Utils.toPositive(Utils.murmur2(key)) % partitions`, the default of Kafka's Java producer.
///
/// We choose the partition ourselves, because order per key and what is outstanding in a partition are ours to keep.
#[must_use]
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    (murmur2(key) & 0x7fff_ffff).checked_rem(partitions).unwrap_or(0)
}

/// MurmurHash2, 32 bits, little-endian, as in `Utils.murmur2`.
#[must_use]
pub fn murmur2(key: &[u8]) -> u32 {
    // Java's lengths are 32 bits, and a key is far below that.
    let mut hash = SEED ^ u32::try_from(key.len()).unwrap_or(u32::MAX);
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word ^= word >> 24;
        hash = hash.wrapping_mul(MULTIPLIER) ^ word.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From `UtilsTest.testMurmur2` of Apache Kafka.
    #[test]
    fn known_vectors_of_the_java_client() {
        let vectors: [(&str, i32); 6] = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key.as_bytes()), hash.cast_unsigned(), "{key}");
        }
    }

    /// From librdkafka's `unittest_murmur2`, where they were taken from a Java client.
    #[test]
    fn every_remainder_of_the_length() {
        let vectors: [(&str, u32); 11] = [
            ("kafka", 0xd067_cf64),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("PreAmbleWillBeRemoved,ThePrePartThatIs", 0x7842_4f1c),
            ("reAmbleWillBeRemoved,ThePrePartThatIs", 0x4a62_b377),
            ("eAmbleWillBeRemoved,ThePrePartThatIs", 0xe0e4_e09e),
            ("AmbleWillBeRemoved,ThePrePartThatIs", 0x62b8_b43f),
            ("", 0x106e_08d9),
        ];
        for (key, hash) in vectors {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn no_partition_is_negative() {
        assert!((0..1000u32).all(|n| partition_of(&n.to_le_bytes(), 7) < 7));
        assert_eq!(partition_of(b"21", 1), 0);
    }
}
