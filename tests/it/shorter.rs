//! Servers that come back with less than they had. What they commit next is never skipped.

use std::time::Duration;

use crate::harness::ledger::{AssertClean as _, Written};
use crate::harness::scenario::Scenario;
use crate::harness::servers::{Postgres, ProcessPostgres, StopMode, shared_kafka, until, versions};
use crate::harness::writer::insert;

/// Commits events of one key, one a transaction, from `from` on.
async fn commit(scenario: &Scenario, key: &str, seqs: std::ops::RangeInclusive<u64>) {
    let sql = scenario.sql().await;
    for seq in seqs {
        let event = Written { id: uuid::Uuid::new_v4().to_string(), key: key.to_owned(), seq };
        insert(&sql, &scenario.place(), std::slice::from_ref(&event), 300).await.unwrap();
        scenario.ledger.lock().unwrap().commit([event]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_copy_of_the_data_folder_loses_nothing_that_it_commits_next() {
    for version in versions() {
        // Once the restored server is still behind what the relay knows, and once it has already written past that.
        for written_past in [false, true] {
            let postgres = ProcessPostgres::start(version, &[]).await;
            let kafka = shared_kafka().await;
            let mut scenario = Scenario::new(&postgres, kafka).await;
            let _consumer = scenario.consume();
            let mut relay = scenario.start().await;
            commit(&scenario, "old", 1..=20).await;
            scenario.settle().await;
            scenario.confirmed().await;

            // A copy of a stopped server, then more events, which the copy does not have.
            postgres.stop(StopMode::Fast).await;
            let copy = postgres.copy_data().await;
            postgres.start_again().await;
            commit(&scenario, "forgotten", 1..=50).await;
            scenario.settle().await;
            scenario.confirmed().await;

            postgres.stop(StopMode::Immediate).await;
            postgres.restore_data(&copy).await;
            if written_past {
                // Another port, so that the relay cannot come in between; it is the same server to the relay afterwards.
                write_past(&postgres, &copy, &mut scenario, version).await;
            }
            postgres.start_again().await;
            commit(&scenario, "new", 1..=100).await;
            scenario.settle().await;
            assert!(!relay.has_ended(), "{}", relay.log());
            assert!(relay.terminate().await.success());
            scenario.ledger.lock().unwrap().allow_positions_to_change();
            let test = format!("PostgreSQL {version}, restored copy (written past: {written_past})");
            // Everything that the copy's slot had not confirmed may come again.
            scenario.judge().assert_clean(&test, 20);
        }
    }
}

/// Lets a server on the copy commit far past what the relay knows, and puts its data in the place of the restored ones.
async fn write_past(
    postgres: &ProcessPostgres,
    copy: &crate::harness::servers::DataCopy,
    scenario: &mut Scenario,
    version: u32,
) {
    let other = ProcessPostgres::start_on(copy, version, &[]).await;
    let conninfo = std::mem::replace(&mut scenario.conninfo, other.conninfo(&scenario.database));
    commit(scenario, "past", 1..=200).await;
    scenario.conninfo = conninfo;
    other.stop(StopMode::Fast).await;
    let past = other.copy_data().await;
    postgres.restore_data(&past).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_asynchronous_standby_loses_nothing_that_it_commits_next() {
    for version in versions() {
        let primary = ProcessPostgres::start(version, &[]).await;
        let mut scenario = Scenario::new(&primary, shared_kafka().await).await;
        let _consumer = scenario.consume();
        primary.stop(StopMode::Fast).await;
        let copy = primary.copy_data().await;
        primary.start_again().await;
        let standby = primary.start_standby(&copy, &[]).await;

        let hosts = format!("host=127.0.0.1,127.0.0.1 port={},{}", primary.port(), standby.port());
        let rest = "user=postgres password=outboxd-tests target_session_attrs=read-write";
        let database_url = format!("{hosts} {rest} dbname={}", scenario.database);
        let mut command = scenario.relay();
        command.database_url = database_url;
        let mut relay = command.start();
        relay.ready().await;
        commit(&scenario, "old", 1..=20).await;
        scenario.settle().await;
        replayed(&primary, &standby).await;

        // The standby is cut off; the primary goes on, the relay publishes that, and then the primary is gone.
        standby.stop(StopMode::Immediate).await;
        commit(&scenario, "forgotten", 1..=50).await;
        scenario.settle().await;
        scenario.confirmed().await;
        primary.kill().await;
        standby.start_again().await;
        standby.promote().await;
        scenario.conninfo = standby.conninfo(&scenario.database);

        commit(&scenario, "new", 1..=100).await;
        scenario.settle().await;
        assert!(!relay.has_ended(), "{}", relay.log());
        assert!(relay.terminate().await.success());
        scenario.ledger.lock().unwrap().allow_positions_to_change();
        // The standby's slot is as old as the copy, so everything since then comes again.
        scenario.judge().assert_clean(&format!("PostgreSQL {version}, promoted standby"), 20);
    }
}

async fn replayed(primary: &Postgres, standby: &Postgres) {
    let end: String =
        primary.sql("postgres").await.query_one("select pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
    let sql = standby.sql("postgres").await;
    until("the standby to replay", Duration::from_secs(30), || async {
        let query = "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
        if sql.query_one(query, &[&end]).await.unwrap().get(0) { Ok(()) } else { Err("not yet") }
    })
    .await;
}
