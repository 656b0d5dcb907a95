//! Looks at both ends, at the same time, and gathers what was found.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio_postgres::Client;

use super::finding::Finding;
use super::routes::Routes;
use super::slot::View;
use super::{Settings, server, slot, table, topics};
use crate::claims::Store;
use crate::kafka::preflight::{Cluster, Preflight, TopicConfig};
use crate::outbox::{Role, Template};
use crate::postgres::preflight::{self, Publication, Table};
use crate::postgres::slot::Slot;
use crate::postgres::{self, ReplicationConnection, StreamSettings, sql};
use crate::recovery::held::{letters, store};

/// Everything that was found, the database's end first.
pub async fn check(settings: &Settings) -> Vec<Finding> {
    let (database, brokers, store) =
        tokio::join!(look_at_database(settings), look_at_brokers(settings), look_at_store(settings));
    let (mut findings, outbox) = database;
    match brokers {
        Ok((preflight, cluster)) => findings.extend(look_at_topics(settings, &preflight, &cluster, &outbox).await),
        Err(finding) => findings.push(finding),
    }
    findings.extend(store);
    findings
}

/// Whether the store of large payloads takes some, if there is to be one.
async fn look_at_store(settings: &Settings) -> Option<Finding> {
    const CHECK: &str = "claim_store";
    let place = settings.mapping.claim_check_to.as_ref()?;
    let store = match Store::open(place) {
        Ok(store) => store,
        Err(what) => return Some(Finding::error(CHECK, what, "correct --claim-check-to or its settings")),
    };
    Some(match store.probe().await {
        Ok(()) => Finding::ok(CHECK, format_args!("{place} takes payloads")),
        Err(trouble) => Finding::error(CHECK, format_args!("{place}: {}", trouble.words()), trouble.remedy()),
    })
}

/// Whether events that cannot be published have a place, and whether some are there.
async fn held(settings: &Settings, client: &Client) -> postgres::Result<Finding> {
    const CHECK: &str = "held_events";
    if let Some(problem) = store::problem(client).await? {
        let what = format!("{problem}: an event that cannot be published stops the relay");
        return Ok(Finding::note(CHECK, what).with_remedy("outboxd setup"));
    }
    let counts = letters::count(client, &settings.slot, &letters::Filter::default()).await?;
    let words: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    Ok(match words.as_slice() {
        [] => Finding::ok(CHECK, "nothing is held"),
        _ => Finding::note(CHECK, format_args!("{} in outboxd.held", words.join(", ")))
            .with_remedy("outboxd dead-letters list"),
    })
}

/// What the outbox tells about what is to be published.
#[derive(Default)]
struct Outbox {
    /// The table's columns.
    columns: Vec<String>,
    /// What rows would become; `None`: it could not be looked at.
    routes: Option<Routes>,
    payload_max: Option<u64>,
    oldest_pending: Option<Duration>,
}

async fn look_at_database(settings: &Settings) -> (Vec<Finding>, Outbox) {
    let client = match sql::connect_and_spawn(&settings.database).await {
        Ok(client) => client,
        Err(error) => return (vec![no_database(&error)], Outbox::default()),
    };
    let mut findings = vec![Finding::ok("database", format_args!("connected to {}", settings.database))];
    let mut outbox = Outbox::default();
    if let Err(error) = ask(settings, client, &mut findings, &mut outbox).await {
        findings.push(no_database(&error));
    }
    (findings, outbox)
}

fn no_database(error: &postgres::Error) -> Finding {
    let remedy = error.remedy().unwrap_or("see the server's log");
    Finding::error("database", error, remedy)
}

async fn ask(
    settings: &Settings,
    mut client: Client,
    findings: &mut Vec<Finding>,
    outbox: &mut Outbox,
) -> postgres::Result<()> {
    preflight::set_limits(&client).await?;
    let server = preflight::server(&client).await?;
    let found_slot = postgres::slot::inspect(&client, &settings.slot).await?;
    let publication = preflight::publication(&client, &settings.publication, &settings.table, &settings.slot).await?;
    let found_table = preflight::table(&client, &settings.table).await?;
    findings.extend(server::judge(&server, found_slot.as_ref()));
    findings.push(replication(settings).await);
    findings.extend(slot::judge(settings, &server, found_slot.as_ref()));
    findings.extend(table::judge_publication(settings, publication.as_ref(), found_table.as_ref()));
    if let (Some(slot), Some(publication)) = (&found_slot, &publication) {
        let is_ours = slot.plugin.as_deref() == Some(postgres::slot::PLUGIN) && !slot.is_lost();
        if is_ours && slot.database.as_deref() == Some(settings.database.dbname()) {
            let view = view(settings, &mut client, slot, publication, server.version_num).await;
            findings.push(slot::judge_view(settings, &view));
        }
    }
    findings.extend(table::judge(settings, found_table.as_ref()));
    findings.push(held(settings, &client).await?);
    if let Some(table) = &found_table {
        look_into_table(settings, &client, table, findings, outbox).await;
    }
    Ok(())
}

/// Whether the role is let in as a relay would be.
async fn replication(settings: &Settings) -> Finding {
    const CHECK: &str = "replication";
    let user = settings.database.user();
    let identified = async {
        let mut connection = ReplicationConnection::connect(&settings.database, &StreamSettings::default()).await?;
        connection.identify_system().await
    };
    match identified.await {
        Ok(_) => Finding::ok(CHECK, format_args!("the role {user} may replicate")),
        Err(error) => {
            let role = postgres::wire::quote::identifier(user);
            let remedy = format!("ALTER ROLE {role} REPLICATION, and pg_hba.conf must let it into this database");
            Finding::error(CHECK, error, remedy)
        }
    }
}

async fn view(
    settings: &Settings,
    client: &mut Client,
    slot: &Slot,
    publication: &Publication,
    version_num: u32,
) -> View {
    // One who could not see it would not go on reading.
    if publication.is_surely_older || slot.active_pid.is_some() {
        return View::Sees;
    }
    // From 18 on the server leaves out what it cannot attribute, and says nothing to this connection.
    if version_num >= 180_000 {
        return View::Unknown("it was created or changed after what the slot reads first".to_owned());
    }
    let Some(confirmed) = slot.confirmed else { return View::Unknown("the slot has no position".to_owned()) };
    match preflight::peek(client, &settings.slot, &settings.publication, confirmed).await {
        Ok(true) => View::Sees,
        Ok(false) => View::Unknown("the beginning of what the slot reads has no event".to_owned()),
        Err(error) if error.is_slot_missing() => View::Blind,
        Err(error) if error.is_slot_active() => View::Sees,
        Err(error) => View::Unknown(error.to_string()),
    }
}

async fn look_into_table(
    settings: &Settings,
    client: &Client,
    table: &Table,
    findings: &mut Vec<Finding>,
    outbox: &mut Outbox,
) {
    outbox.columns.clone_from(&table.columns);
    let Some(payload) = settings.mapping.columns.find(Role::Payload, &table.columns) else { return };
    if !table.may_select || table.is_row_security_active {
        return;
    }
    let deciding = settings.mapping.deciding_columns(&table.columns);
    match preflight::sample(client, &settings.table, &deciding, payload).await {
        Ok(sample) => {
            let routes = Routes::of(&settings.table, &settings.mapping, &table.columns, &deciding, &sample.kinds);
            if let Some(column) = &routes.null {
                findings.push(table::judge_nulls(settings, column));
            }
            outbox.routes = Some(routes);
            outbox.payload_max = sample.payload_max;
        }
        Err(error) => findings.push(table::not_read(settings, &error)),
    }
    if ["txid", "created_at"].iter().all(|name| table.columns.iter().any(|column| column == name)) {
        match preflight::oldest_pending(client, &settings.table, &settings.slot).await {
            Ok(age) => outbox.oldest_pending = age,
            Err(error) => findings.push(table::not_read(settings, &error)),
        }
    }
}

async fn look_at_brokers(settings: &Settings) -> Result<(Preflight, Cluster), Finding> {
    const CHECK: &str = "brokers";
    let brokers = &settings.producer.brokers;
    let remedy = "are the brokers up, and is --brokers right? -X and -F hold security.protocol and the like";
    let preflight = Preflight::new(&settings.producer).map_err(|error| Finding::error(CHECK, error, remedy))?;
    match preflight.cluster().await {
        Ok(cluster) => Ok((preflight, cluster)),
        Err(why) => Err(Finding::error(CHECK, format_args!("no answer from the brokers {brokers}: {why}"), remedy)),
    }
}

async fn look_at_topics(
    settings: &Settings,
    preflight: &Preflight,
    cluster: &Cluster,
    outbox: &Outbox,
) -> Vec<Finding> {
    let found =
        format!("brokers: {}, topics: {}, at {}", cluster.brokers, cluster.topics.len(), settings.producer.brokers);
    let mut findings = vec![Finding::ok("brokers", found)];
    let brokers = settings.producer.brokers.as_str();
    let template = settings.mapping.topic_words(&outbox.columns);
    let wanted = wanted_topics(&template, outbox, &mut findings);
    let missing = wanted.iter().filter(|name| !cluster.topics.contains_key(*name));
    findings.extend(missing.map(|name| topics::missing(name, brokers, cluster.brokers)));
    let alike = cluster.topics.keys().filter(|name| template.may_be(name));
    let present: BTreeSet<String> =
        wanted.iter().filter(|name| cluster.topics.contains_key(*name)).chain(alike).cloned().collect();
    if wanted.is_empty() && present.is_empty() {
        findings.push(topics::none_of(&template.to_string(), outbox.routes.is_some()));
    }
    let names: Vec<String> = present.into_iter().collect();
    let configs = preflight.configs(&names).await.unwrap_or_default();
    for (index, name) in names.iter().enumerate() {
        let config: Option<&TopicConfig> = configs.get(index).and_then(|config| config.as_ref().ok());
        let partitions = cluster.topics.get(name).map(Vec::as_slice).unwrap_or_default();
        let topic = topics::Topic { name, brokers, partitions, config };
        findings.extend(topics::judge(&topic, outbox.payload_max, outbox.oldest_pending));
    }
    findings
}

/// The topics that the rows of the outbox go to.
fn wanted_topics(template: &Template, outbox: &Outbox, findings: &mut Vec<Finding>) -> BTreeSet<String> {
    let mut wanted: BTreeSet<String> = template.fixed().into_iter().map(str::to_owned).collect();
    if let Some(routes) = &outbox.routes {
        wanted.extend(routes.topics.iter().cloned());
        let unnamable = routes.unnamable.iter();
        findings.extend(unnamable.map(|values| topics::unnamable(&routes.columns, values, &template.to_string())));
    }
    wanted
}
