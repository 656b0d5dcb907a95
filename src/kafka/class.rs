//! What an error of librdkafka or of a broker means for the event that it concerns.

use rdkafka::types::RDKafkaErrorCode as Code;

/// What became of a record that was not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Purged by us; nothing is known of it.
    Purged,
    /// Rejected only because another record of its batch is bad (KIP-467).
    Innocent,
    /// The record or its batch can never be accepted as it is.
    Record,
    /// The topic or the partition is not there.
    NoTopic,
    /// We may not write there, or not at all.
    Forbidden,
    /// Anything else: a new producer may succeed.
    Unforeseen,
}

impl Class {
    /// The class of an error code. Total: what is not known is [`Class::Unforeseen`].
    #[must_use]
    pub const fn of(code: Code) -> Self {
        match code {
            Code::PurgeQueue | Code::PurgeInflight => Self::Purged,
            Code::InvalidDifferentRecord => Self::Innocent,
            Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessageSize
            | Code::InvalidMessage
            | Code::UnsupportedForMessageFormat
            | Code::UnsupportedCompressionType
            | Code::PolicyViolation => Self::Record,
            Code::UnknownTopic
            | Code::UnknownTopicOrPartition
            | Code::UnknownPartition
            | Code::UnknownTopicId
            | Code::InvalidTopic => Self::NoTopic,
            Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication => Self::Forbidden,
            _ => Self::Unforeseen,
        }
    }
}
