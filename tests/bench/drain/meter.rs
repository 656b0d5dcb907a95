//! What processes and the whole machine have used, from /proc.

use std::fs;
use std::time::Instant;

/// /proc counts CPU time in hundredths of a second on every architecture (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// The CPU time of a process, user and system. It remembers the last value from before the end of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    pid: u32,
    begin: f64,
    last: f64,
    peak_mib: f64,
}

impl Meter {
    /// From its birth on.
    pub(crate) fn from_birth(pid: u32) -> Self {
        Self { pid, begin: 0.0, last: 0.0, peak_mib: 0.0 }
    }

    /// From now on.
    pub(crate) fn from_now(pid: u32) -> Self {
        let now = cpu_seconds(pid).unwrap_or_default();
        Self { begin: now, last: now, ..Self::from_birth(pid) }
    }

    pub(crate) fn sample(&mut self) {
        if let Some(now) = cpu_seconds(self.pid) {
            self.last = now;
        }
        if let Some(peak) = memory_mib(self.pid, "VmHWM:") {
            self.peak_mib = peak;
        }
    }

    /// CPU seconds up to the last sample.
    pub(crate) fn cpu(&self) -> f64 {
        self.last - self.begin
    }

    /// The most memory that it has had.
    pub(crate) fn peak_mib(&self) -> f64 {
        self.peak_mib
    }
}

/// What the whole machine uses from now on.
pub(crate) struct Machine {
    since: Instant,
    begin: f64,
    own: Meter,
}

impl Machine {
    pub(crate) fn from_now() -> Self {
        Self { since: Instant::now(), begin: busy_seconds(), own: Meter::from_now(std::process::id()) }
    }

    /// What went neither to the processes whose CPU seconds are given nor to this program, in percent of the machine: whether
    /// something disturbed us.
    pub(crate) fn others_percent(&mut self, accounted: f64) -> f64 {
        self.own.sample();
        self.percent(busy_seconds() - self.begin - self.own.cpu() - accounted)
    }

    /// How busy the machine is, with everything.
    pub(crate) fn busy_percent(&self) -> f64 {
        self.percent(busy_seconds() - self.begin)
    }

    fn percent(&self, cpu: f64) -> f64 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        100.0 * cpu.max(0.0) / self.since.elapsed().as_secs_f64() / cores
    }
}

fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, and may hold anything; utime and stime are the 14th and 15th.
    let after_name = stat.rsplit_once(')')?.1;
    let ticks: Option<Vec<f64>> =
        after_name.split_whitespace().skip(11).take(2).map(|field| field.parse().ok()).collect();
    Some(ticks?.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// A line of /proc/PID/status that counts kB, such as `VmHWM:` (the peak) or `VmRSS:`.
pub(crate) fn memory_mib(pid: u32, name: &str) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1024.0)
}

/// All that is not idle and not waiting for a disk: user, nice, system, irq, softirq.
fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.lines().next().unwrap().split_whitespace().skip(1).map(|field| field.parse::<f64>().unwrap());
    let busy = ticks.enumerate().filter(|(index, _)| matches!(index, 0..=2 | 5 | 6)).map(|(_, ticks)| ticks);
    busy.sum::<f64>() / TICKS_PER_SECOND
}

/// The child of this process whose program is called so.
pub(crate) fn child_called(name: &str) -> Option<u32> {
    let parent = std::process::id().to_string();
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.into_iter().find(|pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((before, after)) = stat.rsplit_once(')') else { return false };
        before.ends_with(&format!("({name}")) && after.split_whitespace().nth(1) == Some(&parent)
    })
}
