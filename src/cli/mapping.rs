//! The flags that say what is to be made of rows.

use clap::Args;

use super::brokers::bytes;
use super::effective::Effective;
use crate::config::run::Mistakes;
use crate::outbox::mapping::{Mapping, Rewrite};
use crate::outbox::topic;

/// What is made of rows. Without any of it that follows from the table's columns.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rows and records")]
pub struct MappingArgs {
    /// Which column is what, where its name does not tell: payload=body; a role without a column, such as "headers=", has none.
    #[arg(long = "column", value_name = "ROLE=COLUMN", env = "OUTBOXD_COLUMN", value_delimiter = ',')]
    column: Vec<String>,
    /// The topic, with columns in braces: orders.{tenant:-shared}.{event_type|kebab}; {schema} and {table} are the table's
    /// [default: {topic}, outbox.event.{aggregate_type} or outbox.event.{table}, the first for which there is a column].
    #[arg(long, env = "OUTBOXD_TOPIC")]
    topic: Option<String>,
    /// In place of --topic: the column whose text is rewritten by --route-regex and --route-replacement.
    #[arg(long, value_name = "COLUMN", env = "OUTBOXD_ROUTE_BY")]
    route_by: Option<String>,
    /// What the whole text must look like [default: anything, as the group routedByValue].
    #[arg(long, value_name = "REGEX", env = "OUTBOXD_ROUTE_REGEX")]
    route_regex: Option<String>,
    /// The topic then, with $1 or ${name} for groups [default: outbox.event.${routedByValue}].
    #[arg(long, value_name = "TEXT", env = "OUTBOXD_ROUTE_REPLACEMENT")]
    route_replacement: Option<String>,
    /// The key: a column, a text with columns in braces, or "none" [default: the aggregate's id].
    #[arg(long, env = "OUTBOXD_KEY")]
    key: Option<String>,
    /// The column that holds the number of the partition [default: the key decides, as with Java's clients].
    #[arg(long, value_name = "COLUMN", env = "OUTBOXD_PARTITION_COLUMN")]
    partition_column: Option<String>,
    /// The column that holds the record's timestamp [default: the commit time].
    #[arg(long, value_name = "COLUMN", env = "OUTBOXD_TIMESTAMP_COLUMN")]
    timestamp_column: Option<String>,
    /// A column that becomes a header, under another name after "=".
    #[arg(long, value_name = "COLUMN[=HEADER]", env = "OUTBOXD_HEADER", value_delimiter = ',')]
    header: Vec<String>,
    /// What the value is: payload, envelope, cloudevents or cloudevents-binary.
    #[arg(long, value_name = "FORMAT", env = "OUTBOXD_VALUE", default_value = "payload")]
    value: String,
    /// Whose headers a record has: outboxd or debezium.
    #[arg(long, value_name = "LAYOUT", env = "OUTBOXD_RECORDS", default_value = "outboxd")]
    records: String,
    /// An empty payload is a tombstone, as NULL is.
    #[arg(long, env = "OUTBOXD_TOMBSTONE_ON_EMPTY")]
    tombstone_on_empty: bool,
    /// A payload of more bytes stays in the table: the record has the header outboxd_claim_check, and its value is a JSON object that
    /// names source, row and column. So does one of a row beyond --max-message-bytes.
    #[arg(long, value_name = "BYTES", env = "OUTBOXD_CLAIM_CHECK_ABOVE")]
    claim_check_above: Option<String>,
    /// Puts such a payload there before the record is sent, which then has the URL in the header and, with the number of bytes and
    /// their SHA-256, in its value: file:///folder, or s3://bucket/prefix with the variables AWS_*. Not that of a row beyond
    /// --max-message-bytes.
    #[arg(long, value_name = "URL", env = "OUTBOXD_CLAIM_CHECK_TO")]
    claim_check_to: Option<String>,
    /// Only rows whose status is one of these; the others are counted and left out.
    #[arg(long, value_name = "STATUS", env = "OUTBOXD_STATUS_FILTER", value_delimiter = ',')]
    status_filter: Vec<String>,
}

impl MappingArgs {
    /// What the flags say, checked, with the rules of the configuration file.
    pub(super) fn mapping(&self, effective: &Effective, mistakes: &mut Mistakes) -> Mapping {
        let mut mapping = Mapping {
            partition: self.partition_column.clone(),
            timestamp: self.timestamp_column.clone(),
            empty_is_tombstone: self.tombstone_on_empty,
            statuses: self.status_filter.clone(),
            rules: effective.rules().to_vec(),
            ..Mapping::default()
        };
        let above = self.claim_check_above.as_ref();
        mapping.claim_check_above = above.map(|text| bytes("--claim-check-above", text, 0, mistakes));
        let to = self.claim_check_to.as_ref();
        mapping.claim_check_to = to.and_then(|text| mistakes.note("--claim-check-to", text.parse()));
        if to.is_some() && above.is_none() {
            mistakes.add("--claim-check-to", "does nothing without --claim-check-above, which says from what size on");
        }
        for choice in &self.column {
            mistakes.note("--column", mapping.columns.name(choice));
        }
        mapping.topic = self.topic.as_ref().and_then(|text| mistakes.note("--topic", topic::template(text)));
        mapping.rewrite = self.rewrite(mistakes);
        if let Some(key) = self.key.as_ref().and_then(|text| mistakes.note("--key", text.parse())) {
            mapping.key = key;
        }
        mapping.headers = self.header.iter().filter_map(|text| mistakes.note("--header", text.parse())).collect();
        mapping.value = mistakes.note("--value", self.value.parse()).unwrap_or_default();
        mapping.layout = mistakes.note("--records", self.records.parse()).unwrap_or_default();
        mapping
    }

    fn rewrite(&self, mistakes: &mut Mistakes) -> Option<Rewrite> {
        let Some(column) = &self.route_by else {
            for (flag, given) in
                [("--route-regex", &self.route_regex), ("--route-replacement", &self.route_replacement)]
            {
                if given.is_some() {
                    mistakes.add(flag, "does nothing without --route-by, which names the column");
                }
            }
            return None;
        };
        if self.topic.is_some() {
            mistakes.add("--route-by", "names the topic, and so does --topic; give one of them");
        }
        let pattern = self.route_regex.as_deref().unwrap_or("(?<routedByValue>.*)");
        let replacement = self.route_replacement.as_deref().unwrap_or("outbox.event.${routedByValue}");
        mistakes.note("--route-regex or --route-replacement", Rewrite::new(column, pattern, replacement))
    }
}
