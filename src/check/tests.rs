//! What real servers cannot easily be brought to, and the bounds of what they can.

use std::collections::HashMap;
use std::time::Duration;

use super::finding::{Finding, Grade};
use super::routes::Routes;
use super::{server, topics};
use crate::kafka::preflight::{Partition, TopicConfig};
use crate::outbox::Mapping;
use crate::outbox::rule::{Action, Condition, Rule};
use crate::postgres::preflight::{Capacity, Server};

fn healthy() -> Server {
    Server {
        version_num: 180_004,
        version: "18.4".to_owned(),
        is_standby: false,
        wal_level: "logical".to_owned(),
        encoding: "UTF8".to_owned(),
        slots: Capacity { used: 0, max: 10 },
        senders: Capacity { used: 0, max: 10 },
        sender_timeout: Duration::from_secs(60),
        slot_keep: None,
        idle_slot_timeout: Duration::ZERO,
        clock_ahead: 0.01,
        clock_round_trip: Duration::from_millis(1),
    }
}

type ServerCase = (&'static str, Grade, fn(&mut Server));

type TopicCase<'a> = (&'static str, Grade, &'a [Partition], &'a [(&'a str, &'a str)], Option<u64>);

fn worst(findings: &[Finding]) -> Grade {
    findings.iter().map(|finding| finding.grade).max().unwrap()
}

#[test]
fn a_healthy_server_has_neither_errors_nor_warnings() {
    assert_eq!(worst(&server::judge(&healthy(), None)), Grade::Note);
}

#[test]
fn each_setting_of_the_server_is_judged() {
    let cases: [ServerCase; 10] = [
        ("server_version", Grade::Error, |server| server.version_num = 130_022),
        ("primary", Grade::Error, |server| server.is_standby = true),
        ("wal_level", Grade::Error, |server| server.wal_level = "replica".to_owned()),
        ("replication_slots", Grade::Error, |server| server.slots.used = 10),
        ("wal_senders", Grade::Error, |server| server.senders.used = 10),
        ("wal_sender_timeout", Grade::Warning, |server| server.sender_timeout = Duration::ZERO),
        ("wal_sender_timeout", Grade::Warning, |server| server.sender_timeout = Duration::from_secs(9)),
        ("idle_replication_slot_timeout", Grade::Warning, |server| server.idle_slot_timeout = Duration::from_secs(60)),
        ("encoding", Grade::Warning, |server| server.encoding = "SQL_ASCII".to_owned()),
        ("clock", Grade::Warning, |server| server.clock_ahead = -5.1),
    ];
    for (check, grade, change) in cases {
        let mut changed = healthy();
        change(&mut changed);
        let found = server::judge(&changed, None);
        let finding = found.iter().find(|finding| finding.check == check).unwrap();
        assert_eq!(finding.grade, grade, "{finding:?}");
        assert!(finding.remedy.is_some(), "{finding:?}");
    }
}

#[test]
fn a_slow_answer_is_no_difference_of_the_clocks() {
    let slow = Server { clock_ahead: 6.0, clock_round_trip: Duration::from_secs(4), ..healthy() };
    assert!(server::judge(&slow, None).iter().all(|finding| finding.grade < Grade::Warning));
}

fn of_topic(partitions: &[Partition], settings: &[(&str, &str)], pending: Option<u64>) -> Vec<Finding> {
    let mut all = HashMap::from(
        [
            ("min.insync.replicas", "2"),
            ("max.message.bytes", "1048588"),
            ("cleanup.policy", "delete"),
            ("retention.ms", "604800000"),
            ("unclean.leader.election.enable", "false"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    all.extend(settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let config = TopicConfig::new(all);
    let topic = topics::Topic { name: "t", brokers: "b:9092", partitions, config: Some(&config) };
    topics::judge(&topic, Some(2_000), pending.map(Duration::from_secs))
}

#[test]
fn each_setting_of_a_topic_is_judged() {
    let partition = |has_leader, replicas, in_sync| Partition { has_leader, replicas, in_sync };
    let good = [partition(true, 3, 3), partition(true, 3, 2)];
    assert_eq!(worst(&of_topic(&good, &[], Some(60))), Grade::Ok);
    assert_eq!(worst(&of_topic(&good, &[("cleanup.policy", "compact")], None)), Grade::Note);
    let week = 604_800;
    let cases: [TopicCase<'_>; 9] = [
        ("topic_leaders", Grade::Error, &[partition(false, 3, 0)], &[], None),
        ("topic_copies", Grade::Error, &[partition(true, 1, 1)], &[], None),
        ("topic_copies", Grade::Error, &[partition(true, 3, 1)], &[], None),
        ("topic_copies", Grade::Warning, &good, &[("min.insync.replicas", "1")], None),
        ("topic_copies", Grade::Warning, &good, &[("unclean.leader.election.enable", "true")], None),
        ("topic_size", Grade::Error, &good, &[("max.message.bytes", "2500")], None),
        ("topic_retention", Grade::Warning, &good, &[], Some(week + 1)),
        ("topic_retention", Grade::Warning, &good, &[("retention.ms", "60000")], None),
        ("topic_copies", Grade::Note, &[partition(true, 1, 1)], &[("min.insync.replicas", "1")], None),
    ];
    for (check, grade, partitions, settings, pending) in cases {
        let found = of_topic(partitions, settings, pending);
        let finding = found.iter().find(|finding| finding.check == check).unwrap();
        assert_eq!(finding.grade, grade, "{finding:?}");
        assert_eq!(finding.remedy.is_some(), grade > Grade::Note, "{finding:?}");
    }
}

#[test]
fn rows_are_routed_as_the_relay_would() {
    let columns = ["id", "aggregate_type", "payload", "tenant"].map(str::to_owned);
    let topic = Some("{tenant}.{aggregate_type:-x}".parse().unwrap());
    let drop = Rule { when: vec![Condition::new("tenant", ["no*"])], then: Action::Drop };
    let mapping = Mapping { topic, rules: vec![drop], ..Mapping::default() };
    let deciding = mapping.deciding_columns(&columns);
    assert_eq!(deciding, ["aggregate_type", "tenant"]);
    let kinds = [(Some("a"), Some("t")), (None, Some("t")), (Some("a"), Some("none")), (Some("ä"), Some("t"))];
    let kinds = kinds.map(|(a, t)| vec![a.map(str::to_owned), t.map(str::to_owned)]);
    let table = "public.outbox".parse().unwrap();
    let routes = Routes::of(&table, &mapping, &columns, &deciding, &kinds);
    assert_eq!(routes.topics.iter().collect::<Vec<_>>(), ["t.a", "t.x"]);
    assert_eq!(routes.unnamable, [kinds[3].clone()]);
    assert_eq!(routes.null, None);
    let routes = Routes::of(&table, &mapping, &columns, &deciding, &[vec![None, None]]);
    assert_eq!(routes.null.as_deref(), Some("tenant"));
    let routes = Routes::of(&table, &Mapping::default(), &columns, &columns[1..2], &[vec![None]]);
    assert_eq!(routes.null.as_deref(), Some("aggregate_type"));
}

#[test]
fn retention_without_a_limit_keeps_everything() {
    let partition = Partition { has_leader: true, replicas: 3, in_sync: 3 };
    assert_eq!(worst(&of_topic(&[partition], &[("retention.ms", "-1")], Some(u64::from(u32::MAX)))), Grade::Ok);
}

#[test]
fn a_topic_that_hides_its_settings_is_told() {
    let partition = Partition { has_leader: true, replicas: 3, in_sync: 3 };
    let topic = topics::Topic { name: "t", brokers: "b:9092", partitions: &[partition], config: None };
    assert_eq!(worst(&topics::judge(&topic, None, None)), Grade::Warning);
}
