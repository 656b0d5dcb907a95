//! What the table and its publication mean. Pure.

use super::Settings;
use super::finding::{Finding, shell};
use crate::outbox::{Role, ShapeError};
use crate::postgres::preflight::{Publication, Table};
use crate::postgres::wire::quote::identifier;

/// All findings about the outbox table.
pub(super) fn judge(settings: &Settings, table: Option<&Table>) -> Vec<Finding> {
    let name = &settings.table;
    let Some(table) = table else {
        let remedy = format!("outboxd setup --table {name}, or name yours with --table");
        return vec![Finding::error("table", format_args!("the table {name} does not exist"), remedy)];
    };
    let mut findings = vec![kind(settings, table)];
    findings.extend(shape(settings, table));
    if !table.may_select {
        let user = settings.database.user();
        let what = format!(
            "the role {user} may not read {name}: the relay needs no more than the slot, and this check sees less"
        );
        let remedy = format!(
            "GRANT USAGE ON SCHEMA {} TO {user}; GRANT SELECT ON {} TO {user}",
            identifier(name.schema()),
            name.quoted(),
            user = identifier(user)
        );
        findings.push(Finding::warning("table_privilege", what, remedy));
    }
    if table.is_row_security_active {
        let user = settings.database.user();
        let what = format!("row security hides rows of {name} from the role {user}; the log has them all the same");
        let remedy = format!("ALTER ROLE {} BYPASSRLS", identifier(user));
        findings.push(Finding::warning("row_security", what, remedy));
    }
    findings
}

fn kind(settings: &Settings, table: &Table) -> Finding {
    let (name, quoted) = (&settings.table, settings.table.quoted());
    match (table.kind, table.persistence) {
        ('r' | 'p', 'p') => Finding::ok("table", format_args!("the table {name} is permanent")),
        ('r' | 'p', 'u') => {
            let what = format!("the table {name} is UNLOGGED: the log has none of its rows");
            Finding::error("table", what, format_args!("ALTER TABLE {quoted} SET LOGGED"))
        }
        ('r' | 'p', _) => {
            let what = format!("the table {name} is temporary: the log has none of its rows");
            Finding::error("table", what, "use a permanent table")
        }
        _ => {
            let what = format!("{name} is no table");
            Finding::error("table", what, "name the table behind it with --table")
        }
    }
}

fn shape(settings: &Settings, table: &Table) -> Option<Finding> {
    let name = settings.table.to_string();
    // That all of them are published is looked at elsewhere.
    let error = ShapeError::among(&name, &table.columns, &table.columns, &settings.mapping)?;
    Some(Finding::error("table_columns", error, "add what is missing; README lists what each column is for"))
}

/// Rows that no record can be made of.
pub(super) fn judge_nulls(settings: &Settings, column: &str) -> Finding {
    let what = format!(
        "the table {} has rows whose {column}, which names the topic, is NULL: the relay stops at one",
        settings.table
    );
    Finding::warning("table_nulls", what, "declare the column NOT NULL, or give --topic a default")
}

/// The table could not be looked into.
pub(super) fn not_read(settings: &Settings, error: &crate::postgres::Error) -> Finding {
    let what = format!("the table {} could not be looked into: {error}", settings.table);
    Finding::warning(
        "table_rows",
        what,
        "the relay does not read it either; check again later to see more of topics and sizes",
    )
}

/// All findings about the publication.
pub(super) fn judge_publication(
    settings: &Settings,
    publication: Option<&Publication>,
    table: Option<&Table>,
) -> Vec<Finding> {
    const CHECK: &str = "publication";
    let (name, of) = (&settings.publication, &settings.table);
    let Some(publication) = publication else {
        let what = format!("the publication {name:?} does not exist");
        let remedy =
            format!("outboxd setup --publication {}; if the slot is there already, outboxd drop first", shell(name));
        return vec![Finding::error(CHECK, what, remedy)];
    };
    let alter = format!("ALTER PUBLICATION {}", identifier(name));
    let mut findings = Vec::new();
    if !publication.inserts {
        let what = format!("the publication {name:?} does not publish inserts");
        findings.push(Finding::error("publication_inserts", what, format_args!("{alter} SET (publish = 'insert')")));
    }
    let is_partitioned = table.is_some_and(|table| table.kind == 'p');
    if is_partitioned && !publication.via_root {
        let what = format!("the publication {name:?} publishes the partitions of {of} under their own names");
        let remedy = format!("{alter} SET (publish_via_partition_root = true)");
        findings.push(Finding::error("publication_root", what, remedy));
    } else {
        findings.extend(coverage(settings, publication, table, &alter));
    }
    if let Some(filter) = &publication.row_filter {
        let what = format!("the publication {name:?} leaves out rows of {of} that are not {filter}");
        let remedy = format!("{alter} SET TABLE {}", of.quoted());
        findings.push(Finding::warning("publication_filter", what, remedy));
    }
    findings.extend(ballast(name, publication, &alter));
    findings
}

fn coverage(settings: &Settings, publication: &Publication, table: Option<&Table>, alter: &str) -> Vec<Finding> {
    let (name, of) = (&settings.publication, &settings.table);
    let Some(published) = &publication.columns else {
        // Without a table that can be covered there is nothing to say.
        let what = format!("the publication {name:?} does not cover the table {of}");
        let remedy =
            format!("{alter} ADD TABLE {}; rows that were committed before that are not published", of.quoted());
        let table = table.filter(|table| matches!(table.kind, 'r' | 'p') && table.persistence == 'p');
        return table.map(|_| Finding::error("publication_covers", what, remedy)).into_iter().collect();
    };
    let mut findings = vec![Finding::ok("publication", format_args!("the publication {name:?} covers the table {of}"))];
    // Before version 15 there are no column lists.
    if published.is_empty() {
        return findings;
    }
    let Some(table) = table else { return findings };
    let missing = settings.mapping.unpublished(&table.columns, published);
    if missing.is_empty() {
        findings.extend(headers(settings, published, table));
    } else {
        let what = format!("the publication {name:?} leaves out the column {} of {of}", missing.join(", "));
        findings.push(Finding::error("publication_columns", what, set_columns(of, published, &missing, alter)));
    }
    findings
}

/// The statement that publishes the columns that are missing, beside those that are published.
fn set_columns(of: &crate::postgres::QualifiedName, published: &[String], missing: &[String], alter: &str) -> String {
    let columns: Vec<String> = published.iter().chain(missing).map(|column| identifier(column)).collect();
    format!("{alter} SET TABLE {} ({})", of.quoted(), columns.join(", "))
}

fn headers(settings: &Settings, published: &[String], table: &Table) -> Option<Finding> {
    let find = |among| settings.mapping.columns.find(Role::Headers, among);
    let is_left_out = find(&table.columns).is_some() && find(published).is_none();
    is_left_out.then(|| {
        let (name, of) = (&settings.publication, &settings.table);
        let what = format!("the publication {name:?} leaves out the column headers of {of}: records go without them");
        Finding::note("publication_columns", what)
    })
}

/// What is published and read by nobody.
fn ballast(name: &str, publication: &Publication, alter: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if publication.others {
        let what = format!(
            "the publication {name:?} publishes updates, deletes or truncations too, which the relay passes over"
        );
        findings.push(Finding::warning("publication_ballast", what, format_args!("{alter} SET (publish = 'insert')")));
    }
    if publication.tables > 1 {
        let what =
            format!("the publication {name:?} covers {} tables; all but one are sent in vain", publication.tables);
        let remedy = "use a publication of the outbox alone: outboxd setup --publication NAME --slot NAME creates one, and a slot";
        findings.push(Finding::warning("publication_ballast", what, remedy));
    }
    findings
}
