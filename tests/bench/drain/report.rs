//! The figures, for people and for programs.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Map, Value, json};

use super::bad::Bad;
use super::drain::{Drain, Run};
use super::idle::Idle;
use super::latency::Latency;
use super::stage::{Stage, version_of};
use super::stats::Spread;

/// All that was measured, and on what.
pub(crate) struct Report {
    pub(crate) drains: Vec<Drain>,
    pub(crate) bad: Option<Bad>,
    pub(crate) latencies: Vec<Latency>,
    pub(crate) first_event_ms: Option<Spread>,
    pub(crate) idle: Option<Idle>,
    binary_bytes: u64,
    machine: Value,
    versions: Value,
}

impl Report {
    /// With nothing measured yet.
    pub(crate) async fn of(stage: &Stage) -> Self {
        Self {
            drains: vec![],
            bad: None,
            latencies: vec![],
            first_event_ms: None,
            idle: None,
            binary_bytes: fs::metadata(&stage.outboxd).unwrap().len(),
            machine: machine(),
            versions: json!({
                "outboxd": env!("CARGO_PKG_VERSION"),
                "postgresql": stage.setting("server_version").await,
                "kafka": std::env::var("OUTBOXD_BENCH_KAFKA_VERSION").ok(),
                "pg_recvlogical": version_of(&stage.pg_recvlogical),
            }),
        }
    }

    /// Lines for people.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let line = |text: &mut String, what: &str, value: String| writeln!(text, "{what:<28}{value}").unwrap();
        line(&mut text, "machine", plain(&self.machine));
        line(&mut text, "versions", plain(&self.versions));
        line(&mut text, "binary", format!("{} bytes", self.binary_bytes));
        if !self.drains.is_empty() {
            text += &self.drain_table();
        }
        if let Some(bad) = &self.bad {
            let (clean, held) = (rate(&bad.clean).median, rate(&bad.held).median);
            let words = format!("{held:.0} events/s beside {clean:.0} without; ratio {:.2}", held / clean);
            line(&mut text, "with 1 % bad events", words);
        }
        for latency in &self.latencies {
            line(&mut text, &format!("latency at {} events/s", latency.events_per_s), latency.to_string());
        }
        if let Some(Spread { median, min, max }) = self.first_event_ms {
            line(&mut text, "start to first event", format!("{median:.0} ms ({min:.0}-{max:.0})"));
        }
        if let Some(Idle { cpu_percent, rss_mib }) = self.idle {
            line(&mut text, "idle", format!("{cpu_percent:.2} % of a core, {rss_mib:.1} MiB"));
        }
        text
    }

    /// Medians, of the rate also least and greatest. "+start" is the rate with the start of the process; CPU is in seconds a million
    /// events; "others" is what other processes used of the machine.
    fn drain_table(&self) -> String {
        let mut text = format!(
            "\n{:<17}{:<15}{:>26}{:>7}{:>10}{:>12}{:>11}{:>9}{:>10}{:>9}\n",
            "drain", "client", "events/s", "ratio", "+start", "CPU client", "walsender", "broker", "peak MiB", "others"
        );
        for drain in &self.drains {
            for (client, runs) in [("pg_recvlogical", &drain.pg_recvlogical), ("outboxd", &drain.outboxd)] {
                let Spread { median, min, max } = rate(runs);
                let rate = format!("{median:.0} ({min:.0}-{max:.0})");
                let ratio = if client == "outboxd" { format!("{:.2}", drain.ratio()) } else { String::new() };
                let of = |value: fn(&Run) -> f64| Spread::of(runs.iter().map(value)).median;
                let total = of(|run| run.events_per_s_total);
                let (cpu, walsender, broker) =
                    (of(|run| run.cpu_client), of(|run| run.cpu_walsender), of(|run| run.cpu_broker));
                let (peak, others) = (of(|run| run.peak_mib), of(|run| run.others_percent));
                let name = &drain.name;
                writeln!(
                    text,
                    "{name:<17}{client:<15}{rate:>26}{ratio:>7}{total:>10.0}{cpu:>12.2}{walsender:>11.2}{broker:>9.2}{peak:>10.1}{others:>7.0} %"
                )
                .unwrap();
            }
        }
        text + "\n"
    }

    /// One object for programs; what was not measured is null.
    pub(crate) fn json(&self) -> Value {
        let ratios: Map<_, _> = self.drains.iter().map(|drain| (drain.name.clone(), round(drain.ratio()))).collect();
        let at_1000 = self.latencies.iter().find(|latency| latency.events_per_s == 1000);
        json!({
            "ratio": self.worst_at_10(Drain::ratio, f64::min),
            "ratios": ratios,
            "bad_ratio": self.bad.as_ref().map(|bad| round(rate(&bad.held).median / rate(&bad.clean).median)),
            "cpu_relay_per_million": self.worst_at_10(|drain| drain.median(|run| run.cpu_client), f64::max),
            "p50_ms": at_1000.map(|latency| round(latency.p50_ms)),
            "p99_ms": at_1000.map(|latency| round(latency.p99_ms)),
            "rss_mib": self.worst_at_10(|drain| Spread::of(drain.outboxd.iter().map(|run| run.peak_mib)).max, f64::max),
            "first_event_ms": self.first_event_ms.map(|spread| round(spread.median)),
            "idle_cpu_percent": self.idle.map(|idle| round(idle.cpu_percent)),
            "idle_rss_mib": self.idle.map(|idle| round(idle.rss_mib)),
            "binary_bytes": self.binary_bytes,
            "events_per_s": self.drains.iter().map(|drain| (drain.name.clone(), drain.json())).collect::<Map<_, _>>(),
            "latency": self.latencies.iter().map(Latency::json).collect::<Vec<_>>(),
            "machine": self.machine,
            "versions": self.versions,
        })
    }

    /// Of the reference table with 10 rows a transaction, the worse of the two kinds of connections.
    fn worst_at_10(&self, value: impl Fn(&Drain) -> f64, worse: fn(f64, f64) -> f64) -> Option<Value> {
        let both = self.drains.iter().filter(|drain| ["unix_10", "tcp_10"].contains(&drain.name.as_str()));
        both.map(value).reduce(worse).map(round)
    }
}

impl Drain {
    fn ratio(&self) -> f64 {
        rate(&self.outboxd).median / rate(&self.pg_recvlogical).median
    }

    /// Of outboxd's runs.
    fn median(&self, value: impl Fn(&Run) -> f64) -> f64 {
        Spread::of(self.outboxd.iter().map(value)).median
    }

    fn json(&self) -> Value {
        let rates = |runs| {
            let Spread { median, min, max } = rate(runs);
            json!({ "median": median.round(), "min": min.round(), "max": max.round() })
        };
        json!({
            "outboxd": rates(&self.outboxd),
            "outboxd_with_start": self.median(|run| run.events_per_s_total).round(),
            "pg_recvlogical": rates(&self.pg_recvlogical),
            "cpu_relay_per_million": round(self.median(|run| run.cpu_client)),
            "cpu_walsender_per_million": round(self.median(|run| run.cpu_walsender)),
            "cpu_broker_per_million": round(self.median(|run| run.cpu_broker)),
            "others_percent": round(self.median(|run| run.others_percent)),
        })
    }
}

fn rate(runs: &[Run]) -> Spread {
    Spread::of(runs.iter().map(|run| run.events_per_s))
}

impl std::fmt::Display for Latency {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { events_per_s_written, p50_ms, p99_ms, max_ms, cpu_percent, machine_percent, .. } = self;
        write!(formatter, "p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms, max {max_ms:.2} ms; ")?;
        write!(
            formatter,
            "written {events_per_s_written:.0} a second; relay {cpu_percent:.0} % of a core, machine {machine_percent:.0} %"
        )
    }
}

impl Latency {
    fn json(&self) -> Value {
        json!({
            "events_per_s": self.events_per_s,
            "events_per_s_written": self.events_per_s_written.round(),
            "p50_ms": round(self.p50_ms),
            "p99_ms": round(self.p99_ms),
            "max_ms": round(self.max_ms),
            "cpu_relay_percent": round(self.cpu_percent),
            "machine_percent": round(self.machine_percent),
        })
    }
}

/// Three digits after the point are more than are true.
fn round(value: f64) -> Value {
    json!((value * 1e3).round() / 1e3)
}

/// A flat object as text.
fn plain(object: &Value) -> String {
    let members = object.as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    members.map(|(name, value)| format!("{name} {}", text(value))).collect::<Vec<_>>().join(", ")
}

fn machine() -> Value {
    let value = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("", |(_, value)| value.trim()).to_owned()
    };
    let memory_kib: f64 = value("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
    json!({
        "cpu": value("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_gib": (memory_kib / 1024.0 / 1024.0).round(),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
    })
}
