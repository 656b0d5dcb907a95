//! Topics that are made where they are missing, for those who want that.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::RDKafkaErrorCode;

/// The broker's own default, in Kafka's protocol.
const OF_BROKER: i32 = -1;

/// How new topics are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewTopics {
    /// How many partitions.
    partitions: i32,
    /// How many copies of each.
    replication: i32,
}

impl NewTopics {
    /// Makes topics. What cannot be made is told, and stays missing.
    pub(super) async fn create<C: ClientContext>(self, client: &AdminClient<C>, names: &[&str], timeout: Duration) {
        let new = |name| NewTopic::new(name, self.partitions, TopicReplication::Fixed(self.replication));
        let topics: Vec<_> = names.iter().copied().map(new).collect();
        let options = AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
        match client.create_topics(&topics, &options).await {
            Ok(results) => results.into_iter().for_each(|result| match result {
                Ok(topic) => tracing::info!(topic, "the topic did not exist and was created"),
                // Another one was quicker.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => tracing::warn!(topic, %code, "the topic does not exist and cannot be created"),
            }),
            Err(error) => tracing::warn!(%error, "topics that do not exist cannot be created"),
        }
    }
}

impl FromStr for NewTopics {
    type Err = NewTopicsError;

    /// `partitions=6,replication=3`; what is left out is the broker's default.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut new = Self { partitions: OF_BROKER, replication: OF_BROKER };
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| NewTopicsError(part.to_owned()))?;
            let number = value.trim().parse().ok().filter(|number| (1..=i32::from(i16::MAX)).contains(number));
            let number = number.ok_or_else(|| NewTopicsError(part.to_owned()))?;
            match name.trim() {
                "partitions" => new.partitions = number,
                "replication" => new.replication = number,
                _ => return Err(NewTopicsError(part.to_owned())),
            }
        }
        Ok(new)
    }
}

/// A part that does not say how topics are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopicsError(String);

impl fmt::Display for NewTopicsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not of the form partitions=6,replication=3", self.0)
    }
}

impl std::error::Error for NewTopicsError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_the_brokers() {
        let parse = |text: &str| text.parse::<NewTopics>().map(|new| (new.partitions, new.replication));
        assert_eq!(parse("partitions=6,replication=3"), Ok((6, 3)));
        assert_eq!(parse("replication=1"), Ok((-1, 1)));
        assert_eq!(parse(""), Ok((-1, -1)));
        for bad in ["6", "partitions=0", "partitions=x", "copies=3", "partitions=99999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
