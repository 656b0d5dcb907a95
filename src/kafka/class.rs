//! What an error of librdkafka or of a broker means for the event that it concerns.

use std::fmt;

use rdkafka::types::RDKafkaErrorCode as Code;

/// What became of a record that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Purged by us; nothing is known of it.
    Purged,
    /// Rejected only because another record of its batch is bad (KIP-467).
    Innocent,
    /// The record or its batch can never be accepted as it is.
    Record,
    /// The topic or the partition is not there.
    NoTopic,
    /// We may not write to this topic.
    Forbidden,
    /// We may not write at all, or not even come in.
    Access,
    /// The broker or the producer is in trouble that passes, or that a new producer ends.
    Passing,
    /// Nothing that this table knows: a new producer is tried, and in the end the relay halts.
    Unforeseen,
}

/// Every code that may stand in a delivery report or come from `produce()`, and its class. What is not here is unforeseen.
const TABLE: [(Class, &[Code]); 7] = [
    (Class::Purged, &[Code::PurgeQueue, Code::PurgeInflight]),
    (Class::Innocent, &[Code::InvalidDifferentRecord]),
    (
        Class::Record,
        &[
            Code::InvalidRecord,
            Code::InvalidTimestamp,
            Code::MessageSizeTooLarge,
            Code::MessageBatchTooLarge,
            Code::InvalidMessageSize,
            Code::InvalidMessage,
            Code::UnsupportedForMessageFormat,
            Code::UnsupportedCompressionType,
            Code::PolicyViolation,
        ],
    ),
    (
        Class::NoTopic,
        &[
            Code::UnknownTopic,
            Code::UnknownTopicOrPartition,
            Code::UnknownPartition,
            Code::UnknownTopicId,
            Code::InvalidTopic,
        ],
    ),
    (Class::Forbidden, &[Code::TopicAuthorizationFailed]),
    (
        Class::Access,
        &[
            Code::ClusterAuthorizationFailed,
            Code::TransactionalIdAuthorizationFailed,
            Code::SaslAuthenticationFailed,
            Code::Authentication,
        ],
    ),
    (
        Class::Passing,
        &[
            Code::Fatal,
            Code::GaplessGuarantee,
            Code::Inconsistent,
            Code::OutOfOrderSequenceNumber,
            Code::DuplicateSequenceNumber,
            Code::UnknownProducerId,
            Code::InvalidProducerEpoch,
            Code::InvalidProducerIdMapping,
            Code::ProducerFenced,
            Code::MessageTimedOut,
            Code::OperationTimedOut,
            Code::RequestTimedOut,
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::NotLeaderForPartition,
            Code::LeaderNotAvailable,
            Code::FencedLeaderEpoch,
            Code::UnknownLeaderEpoch,
            Code::ReplicaNotAvailable,
            Code::BrokerNotAvailable,
            Code::NotEnoughReplicas,
            Code::NotEnoughReplicasAfterAppend,
            Code::KafkaStorageError,
            Code::ThrottlingQuotaExceeded,
            Code::NetworkException,
            Code::CoordinatorLoadInProgress,
            Code::CoordinatorNotAvailable,
            Code::NotCoordinator,
        ],
    ),
];

impl Class {
    /// The class of an error code. Total: what is not known is [`Class::Unforeseen`].
    #[must_use]
    pub fn of(code: Code) -> Self {
        TABLE.iter().find(|(_, codes)| codes.contains(&code)).map_or(Self::Unforeseen, |(class, _)| *class)
    }
}

/// The word under which held events tell it.
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Purged => "purged",
            Self::Innocent => "innocent",
            Self::Record => "record",
            Self::NoTopic => "no_topic",
            Self::Forbidden => "forbidden",
            Self::Access => "access",
            Self::Passing => "passing",
            Self::Unforeseen => "unforeseen",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_table_has_one_class_and_others_are_unforeseen() {
        let all: Vec<Code> = TABLE.iter().flat_map(|(_, codes)| codes.iter().copied()).collect();
        for (class, codes) in TABLE {
            for code in codes {
                assert_eq!(Class::of(*code), class, "{code:?}");
                assert_eq!(all.iter().filter(|other| *other == code).count(), 1, "{code:?} stands there twice");
            }
        }
        assert_eq!(Class::of(Code::Unknown), Class::Unforeseen);
        assert_eq!(Class::of(Code::RebalanceInProgress), Class::Unforeseen);
    }
}
