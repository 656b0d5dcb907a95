//! Every way in which rows come, and the records that they become.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{SinkExt, pin_mut};
use rdkafka::message::{Message, OwnedMessage};
use tokio_postgres::Client;

use crate::harness::consumer::{Consumer, header};
use crate::harness::scenario::Scenario;
use crate::harness::servers::{Postgres, shared_kafka, shared_postgres, until, versions};

/// The payloads, in the order of arrival, once there are so many and the relay has confirmed everything.
async fn payloads(consumer: &Consumer, count: usize) -> Vec<String> {
    until(&format!("{count} records"), Duration::from_secs(30), || async {
        let there = consumer.count();
        if there >= count { Ok(()) } else { Err(format!("there are {there}")) }
    })
    .await;
    let text = |record: &OwnedMessage| String::from_utf8(record.payload().unwrap_or_default().to_vec()).unwrap();
    let payloads: Vec<_> = consumer.records().iter().map(text).collect();
    assert_eq!(payloads.len(), count, "{payloads:?}");
    payloads
}

/// An INSERT of one event with this payload and key.
fn insert(topic: &str, key: &str, payload: &str) -> String {
    format!(
        "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         values (gen_random_uuid(), '{topic}', '{key}', 'Happened', '{payload}')"
    )
}

async fn run(sql: &Client, statements: &[String]) {
    sql.batch_execute(&statements.join(";")).await.unwrap();
}

/// Databases of all versions with a relay on each, and a test on them.
async fn each<F: Future<Output = ()>>(test: impl Fn(Scenario, &'static Postgres) -> F) {
    for version in versions() {
        let postgres = shared_postgres(version).await;
        test(Scenario::new(postgres, shared_kafka().await).await, postgres).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_what_the_readme_says() {
    each(|scenario, _| async move {
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        let sql = scenario.sql().await;
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let statement = format!(
            "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers) values \
             ('0e0ebd43-0d9b-4a7b-8c3b-3a8c3c9d7f10', '{0}', 'order-7', 'Placed', '{{\"a\":  1.10, \"ü\": \"\\u00e9\"}}', null), \
             ('0e0ebd43-0d9b-4a7b-8c3b-3a8c3c9d7f11', '{0}', 'order-7', 'Gone', null, '{{\"trace\": \"t-1\", \"n\": 5}}')",
            scenario.topic
        );
        sql.batch_execute(&statement).await.unwrap();
        payloads(&consumer, 2).await;
        let records = consumer.records();
        let [placed, gone] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!(placed.key(), Some(&b"order-7"[..]));
        assert_eq!(placed.payload(), Some("{\"a\":  1.10, \"ü\": \"\\u00e9\"}".as_bytes()));
        assert_eq!(gone.payload(), None, "NULL is a tombstone");
        assert_eq!(header(placed, "id").unwrap(), "0e0ebd43-0d9b-4a7b-8c3b-3a8c3c9d7f10");
        assert_eq!(header(placed, "event_type").unwrap(), "Placed");
        assert_eq!(header(placed, "outboxd_source").unwrap(), format!("{}/outboxd.outbox", scenario.database));
        assert_eq!(header(placed, "outboxd_commit_time"), None);
        assert_eq!(header(gone, "trace").unwrap(), "t-1");
        assert_eq!(header(gone, "n").unwrap(), "5");
        let position = header(placed, "outboxd_position").unwrap();
        assert!(position.len() == 25 && position.ends_with("-00000000"), "{position}");
        assert_eq!(header(gone, "outboxd_position").unwrap(), position.replace("-00000000", "-00000001"));
        let timestamp = u128::try_from(placed.timestamp().to_millis().unwrap()).unwrap();
        assert!((before..before + 60_000).contains(&timestamp), "{timestamp} is not the commit time after {before}");
        assert_eq!(placed.partition(), gone.partition());
        assert!(relay.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_multi_row_insert_and_copy_come_in_their_order() {
    each(|scenario, _| async move {
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        let sql = scenario.sql().await;
        let topic = &scenario.topic;
        let many = format!(
            "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             select gen_random_uuid(), '{topic}', 'k', 'Happened', to_json(n) from generate_series(1, 500) n"
        );
        sql.batch_execute(&many).await.unwrap();
        let copy = "copy outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload) from stdin";
        let sink = sql.copy_in::<_, bytes::Bytes>(copy).await.unwrap();
        pin_mut!(sink);
        for n in 501..=1000 {
            let line = format!("{}\t{topic}\tk\tHappened\t{n}\n", uuid::Uuid::new_v4());
            sink.send(bytes::Bytes::from(line)).await.unwrap();
        }
        sink.finish().await.unwrap();
        let expected: Vec<String> = (1..=1000).map(|n| n.to_string()).collect();
        assert_eq!(payloads(&consumer, 1000).await, expected);
        assert!(relay.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_is_never_published() {
    for version in versions() {
        let settings = [("max_prepared_transactions", "10")];
        let postgres = Postgres::start(version, &settings).await;
        let scenario = Scenario::new(&postgres, shared_kafka().await).await;
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        let sql = scenario.sql().await;
        let event = |payload: &str| insert(&scenario.topic, "k", payload);
        let text = str::to_owned;
        run(&sql, &[text("begin"), event("1"), text("savepoint a"), event("-1"), text("savepoint b"), event("-2")])
            .await;
        run(&sql, &[text("rollback to a"), event("2"), text("commit")]).await;
        run(&sql, &[text("begin"), event("-3"), text("rollback")]).await;
        run(&sql, &[text("begin"), event("3"), text("prepare transaction 'yes'")]).await;
        run(&sql, &[text("begin"), event("-4"), text("prepare transaction 'no'")]).await;
        run(&sql, &[event("4")]).await;
        run(&sql, &[text("commit prepared 'yes'")]).await;
        run(&sql, &[text("rollback prepared 'no'")]).await;
        run(&sql, &[event("5")]).await;
        assert_eq!(payloads(&consumer, 5).await, ["1", "2", "4", "3", "5"]);
        assert!(relay.terminate().await.success());
        assert_eq!(consumer.count(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interleaved_transactions_come_in_the_order_of_their_commits() {
    each(|scenario, _| async move {
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        let (one, two) = (scenario.sql().await, scenario.sql().await);
        let event = |payload: &str| insert(&scenario.topic, "k", payload);
        let text = str::to_owned;
        run(&one, &[text("begin"), event("3")]).await;
        run(&two, &[text("begin"), event("1")]).await;
        run(&one, &[event("4")]).await;
        run(&two, &[event("2"), text("commit")]).await;
        run(&one, &[text("commit")]).await;
        assert_eq!(payloads(&consumer, 4).await, ["1", "2", "3", "4"]);
        let positions: Vec<_> = consumer.records().iter().map(|r| header(r, "outboxd_position").unwrap()).collect();
        assert!(positions.is_sorted(), "{positions:?}");
        assert!(relay.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_added_and_renamed_while_events_flow() {
    each(|scenario, postgres| async move {
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        let sql = scenario.sql().await;
        run(&sql, &[insert(&scenario.topic, "k", "1")]).await;
        sql.batch_execute("alter table outboxd.outbox add column note text").await.unwrap();
        run(&sql, &[insert(&scenario.topic, "k", "2")]).await;
        // To Debezium's name, which is known too; in the same transaction as rows before and after it.
        let rename = "alter table outboxd.outbox rename column event_type to type".to_owned();
        let renamed = insert(&scenario.topic, "k", "4").replace("event_type", "type");
        run(
            &sql,
            &["begin".to_owned(), insert(&scenario.topic, "k", "3"), rename, renamed.clone(), "commit".to_owned()],
        )
        .await;
        run(&sql, &[renamed.replace("'4'", "'5'")]).await;
        assert_eq!(payloads(&consumer, 5).await, ["1", "2", "3", "4", "5"], "PostgreSQL {}", postgres.version());
        assert!(consumer.records().iter().all(|record| header(record, "event_type").as_deref() == Some("Happened")));
        assert!(relay.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_read_with_the_definitions_of_its_own_time() {
    each(|scenario, _| async move {
        let consumer = scenario.consume();
        let sql = scenario.sql().await;
        sql.batch_execute("alter publication outboxd set table outboxd.outbox").await.unwrap();
        let event = |key: &str, columns: &str, values: &str| {
            format!(
                "insert into outboxd.outbox (id, aggregate_type, aggregate_id, event_type, payload{columns}) \
                 values (gen_random_uuid(), '{}', '{key}', 'e', '1'{values})",
                scenario.topic
            )
        };
        sql.batch_execute(&event("a", ", headers", ", '{\"trace\": \"t-1\"}'")).await.unwrap();
        sql.batch_execute("alter table outboxd.outbox drop column headers").await.unwrap();
        sql.batch_execute(&event("a", "", "")).await.unwrap();
        let relay = scenario.start().await;
        payloads(&consumer, 2).await;
        let traces: Vec<_> = consumer.records().iter().map(|record| header(record, "trace")).collect();
        assert_eq!(traces, [Some("t-1".to_owned()), None]);
        assert!(relay.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_deletes_and_other_tables_are_nothing_to_it() {
    each(|scenario, _| async move {
        let consumer = scenario.consume();
        let relay = scenario.start().await;
        let sql = scenario.sql().await;
        sql.batch_execute("create table other (n int primary key)").await.unwrap();
        sql.batch_execute("insert into other select generate_series(1, 50000)").await.unwrap();
        run(&sql, &[insert(&scenario.topic, "k", "1")]).await;
        sql.batch_execute("update outboxd.outbox set event_type = 'Changed'").await.unwrap();
        sql.batch_execute("delete from outboxd.outbox").await.unwrap();
        sql.batch_execute("begin; truncate outboxd.outbox; update other set n = -n; commit").await.unwrap();
        run(&sql, &[insert(&scenario.topic, "k", "2")]).await;
        assert_eq!(payloads(&consumer, 2).await, ["1", "2"]);

        // An idle outbox in a database that writes elsewhere does not hold the log.
        sql.batch_execute("delete from other").await.unwrap();
        let end: String = sql.query_one("select pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
        until("the slot to follow", Duration::from_secs(10), || async {
            let query = "select confirmed_flush_lsn >= $2::text::pg_lsn from pg_replication_slots where slot_name = $1";
            let row = sql.query_one(query, &[&scenario.slot, &end]).await.unwrap();
            if row.get(0) { Ok(()) } else { Err("not yet") }
        })
        .await;
        assert!(relay.terminate().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn debeziums_table_works_as_it_is() {
    each(|scenario, _| async move {
        let sql = scenario.sql().await;
        sql.batch_execute(
            "create table public.events (id uuid primary key, aggregatetype text not null, aggregateid text not null, \
             type text not null, payload bytea)",
        )
        .await
        .unwrap();
        let slot = format!("{}_d", scenario.slot);
        let flags = ["--slot", &slot, "--publication", "debezium", "--table", "public.events"];
        let setup = scenario.outboxd("setup").args(flags).output().await.unwrap();
        assert!(setup.status.success(), "{}", String::from_utf8_lossy(&setup.stderr));
        let consumer = scenario.consume();
        let command = scenario.relay().flag("--publication", "debezium").flag("--table", "public.events");
        // Later flags win.
        let mut relay = command.flag("--slot", &slot).start();
        relay.ready().await;
        let statement = format!(
            "insert into public.events values (gen_random_uuid(), '{}', 'k', 'Happened', '\\x00ff61')",
            scenario.topic
        );
        sql.batch_execute(&statement).await.unwrap();
        until("the record", Duration::from_secs(30), || async {
            if consumer.count() == 1 { Ok(()) } else { Err("not yet") }
        })
        .await;
        assert_eq!(consumer.records()[0].payload(), Some(&[0, 255, b'a'][..]));
        assert!(relay.terminate().await.success());
    })
    .await;
}
