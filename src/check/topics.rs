//! What the brokers and their topics mean. Pure.

use std::time::Duration;

use super::finding::Finding;
use crate::kafka::preflight::{Partition, TopicConfig};

/// Events that are younger than this carry their commit time, and a topic that keeps less removes them at once.
const OWN_TIME_MAX: Duration = Duration::from_secs(3600);

/// A record beside its payload: key, headers, and what a batch adds.
const RECORD_OVERHEAD: u64 = 1024;

/// A topic that is there.
pub(super) struct Topic<'a> {
    pub(super) name: &'a str,
    /// Where the brokers are.
    pub(super) brokers: &'a str,
    pub(super) partitions: &'a [Partition],
    /// `None`: the brokers do not tell.
    pub(super) config: Option<&'a TopicConfig>,
}

/// A topic that events would go to is not there.
pub(super) fn missing(name: &str, brokers: &str, count: usize) -> Finding {
    let what = format!("the topic {name} does not exist: its events wait, then the relay stops");
    let copies = count.clamp(1, 3);
    let remedy = format!(
        "kafka-topics.sh --bootstrap-server {brokers} --create --topic {name} --partitions 6 --replication-factor {copies}"
    );
    Finding::error("topic", what, remedy)
}

/// No topic is there that the template could mean, and the outbox does not tell which are needed.
pub(super) fn none_of(template: &str, is_looked_at: bool) -> Finding {
    let why = if is_looked_at { "has no rows that tell" } else { "could not be asked" };
    let what = format!("no topic is like {template}, and the outbox {why} which are needed");
    Finding::warning("topic", what, "create a topic for every aggregate type before its first event")
}

/// A kind of event whose topic would have a name that Kafka does not take; the columns and what they hold.
pub(super) fn unnamable(columns: &[String], values: &[Option<String>], template: &str) -> Finding {
    let values = values.iter().map(|value| value.as_deref().unwrap_or("NULL"));
    let words: Vec<String> = columns.iter().zip(values).map(|(column, value)| format!("{column} {value:?}")).collect();
    let what = format!("{template} makes no name of a topic for {}", words.join(", "));
    let remedy =
        "letters, digits, '.', '_' and '-' make a name, 249 at most; write other types, or choose another --topic";
    Finding::error("topic", what, remedy)
}

/// All findings about one topic.
pub(super) fn judge(topic: &Topic<'_>, payload_max: Option<u64>, oldest_pending: Option<Duration>) -> Vec<Finding> {
    let mut findings = vec![partitions(topic)];
    let Some(config) = topic.config else {
        let what = format!("the brokers do not tell the settings of the topic {}", topic.name);
        let remedy =
            "allow DescribeConfigs on the topic; without it the relay assumes Kafka's default max.message.bytes";
        findings.push(Finding::warning("topic_config", what, remedy));
        return findings;
    };
    findings.extend(copies(topic, config));
    findings.extend(size(topic, config, payload_max));
    findings.extend(retention(topic, config, oldest_pending));
    findings.extend(compaction(topic, config));
    findings
}

fn partitions(topic: &Topic<'_>) -> Finding {
    let (name, all) = (topic.name, topic.partitions.len());
    let leaderless = topic.partitions.iter().filter(|partition| !partition.has_leader).count();
    if leaderless > 0 {
        let what = format!("{leaderless} of {all} partitions of the topic {name} have no leader: their events wait");
        return Finding::error("topic_leaders", what, "bring the brokers back that have their copies");
    }
    Finding::ok("topic", format_args!("the topic {name} has {all} partitions, all with a leader"))
}

fn copies(topic: &Topic<'_>, config: &TopicConfig) -> Option<Finding> {
    const CHECK: &str = "topic_copies";
    let name = topic.name;
    let needed = usize::try_from(config.number("min.insync.replicas")?).ok()?;
    let replicas = topic.partitions.iter().map(|partition| partition.replicas).min()?;
    let in_sync = topic.partitions.iter().map(|partition| partition.in_sync).min()?;
    let alter = |value| alter(topic, "min.insync.replicas", value);
    if needed > replicas {
        let what = format!(
            "min.insync.replicas of the topic {name} is {needed}, and it has {replicas} copies: nothing is acknowledged"
        );
        return Some(Finding::error(CHECK, what, alter(&replicas.to_string())));
    }
    if in_sync < needed {
        let what =
            format!("a partition of the topic {name} has {in_sync} copies in sync of {needed} needed: its events wait");
        return Some(Finding::error(CHECK, what, "bring the missing brokers back"));
    }
    if replicas == 1 {
        let what = format!("the topic {name} has one copy: with its disk, acknowledged events are lost");
        return Some(Finding::note(CHECK, what));
    }
    if needed == 1 {
        let what = format!("min.insync.replicas of the topic {name} is 1: an event may be acknowledged with one copy");
        return Some(Finding::warning(CHECK, what, alter("2")));
    }
    if config.text("unclean.leader.election.enable") == Some("true") {
        let what = format!("the topic {name} allows unclean leaders: acknowledged events may vanish");
        return Some(Finding::warning(CHECK, what, self::alter(topic, "unclean.leader.election.enable", "false")));
    }
    let what =
        format!("{needed} of {replicas} copies of the topic {name} must have an event before it is acknowledged");
    Some(Finding::ok(CHECK, what))
}

fn size(topic: &Topic<'_>, config: &TopicConfig, payload_max: Option<u64>) -> Option<Finding> {
    const CHECK: &str = "topic_size";
    let limit = u64::try_from(config.number("max.message.bytes")?).ok()?;
    let shown = bytesize::ByteSize::b(limit).display().iec();
    let what = format!("the topic {} takes records up to {shown}", topic.name);
    match payload_max.filter(|largest| largest + RECORD_OVERHEAD > limit) {
        Some(largest) => {
            let what =
                format!("{what}; the outbox has a payload of {}", bytesize::ByteSize::b(largest).display().iec());
            let wanted = (largest + RECORD_OVERHEAD).next_power_of_two().to_string();
            Some(Finding::error(CHECK, what, alter(topic, "max.message.bytes", &wanted)))
        }
        None => Some(Finding::ok(CHECK, what)),
    }
}

fn retention(topic: &Topic<'_>, config: &TopicConfig, oldest_pending: Option<Duration>) -> Option<Finding> {
    const CHECK: &str = "topic_retention";
    if !config.text("cleanup.policy").is_some_and(|policy| policy.contains("delete")) {
        return None;
    }
    let kept = Duration::from_millis(u64::try_from(config.number("retention.ms")?).ok()?);
    let shown = humantime::format_duration(kept);
    let what = format!("the topic {} keeps records for {shown}", topic.name);
    let pending = oldest_pending.filter(|age| *age > kept);
    if let Some(age) = pending {
        let age = humantime::format_duration(Duration::from_secs(age.as_secs()));
        let what = format!("{what}; an event has waited for {age}, and may be removed before anybody has read it");
        return Some(Finding::warning(CHECK, what, alter(topic, "retention.ms", "604800000")));
    }
    if kept < OWN_TIME_MAX {
        let what = format!("{what}: an event that waited for longer is removed at once");
        return Some(Finding::warning(CHECK, what, alter(topic, "retention.ms", "604800000")));
    }
    Some(Finding::ok(CHECK, what))
}

fn compaction(topic: &Topic<'_>, config: &TopicConfig) -> Option<Finding> {
    config.text("cleanup.policy").filter(|policy| policy.contains("compact")).map(|_| {
        let what = format!(
            "the topic {} is compacted: of each key the last event stays, and an event without a key is refused",
            topic.name
        );
        Finding::note("topic_compaction", what)
    })
}

fn alter(topic: &Topic<'_>, name: &str, value: &str) -> String {
    let Topic { name: topic, brokers, .. } = topic;
    format!(
        "kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name {topic} --add-config \
         {name}={value}"
    )
}
