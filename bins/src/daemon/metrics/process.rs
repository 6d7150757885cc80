//! Metrics of this process and its build, under the names common to Prometheus client libraries.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::Number;
use crate::open_files::open_files_limit;

/// The kernel's figures for this process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    cpu_seconds: f64,
    resident_bytes: u64,
    start_seconds: f64,
}

/// Without a prefix. Values that the kernel does not report have no series.
pub(super) fn register(registry: &mut Registry) {
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let current = || usage(&read("/proc/self/stat")?, &read("/proc/self/status")?, &read("/proc/stat")?);
    if let Some(usage) = current() {
        let cpu = Counter::<f64, AtomicU64>::default();
        cpu.inc_by(usage.cpu_seconds);
        registry.register("process_cpu_seconds", "Processor time of this process, user and system", cpu);
        let resident = Number::default();
        resident.set(usage.resident_bytes);
        registry.register("process_resident_memory_bytes", "Memory of this process that is in RAM", resident);
        let start = Gauge::<f64, AtomicU64>::default();
        start.set(usage.start_seconds);
        registry.register("process_start_time_seconds", "Start time of this process, since the Unix epoch", start);
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let open = Number::default();
        open.set(files.count() as u64);
        registry.register("process_open_fds", "Open file descriptors", open);
    }
    if let Some(most) = open_files_limit() {
        let gauge = Number::default();
        gauge.set(most);
        registry.register("process_max_fds", "Limit of open file descriptors", gauge);
    }
}

/// `muster_build_info`, and for a manager `muster_cluster_info`.
pub(super) fn infos(registry: &mut Registry, release: &str, cluster: Option<(String, String)>) {
    #[derive(Debug, Hash, PartialEq, Eq, Clone, EncodeLabelSet)]
    struct Build {
        version: String,
        release: String,
        feature_level: u32,
    }
    #[derive(Debug, Hash, PartialEq, Eq, Clone, EncodeLabelSet)]
    struct Cluster {
        name: String,
        id: String,
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let build = Build { version, release: release.to_owned(), feature_level: muster_messages::FEATURE_LEVEL };
    registry.register("build", "The build of this daemon and the release that it reports", Info::new(build));
    if let Some((name, id)) = cluster {
        registry.register("cluster", "The cluster that this manager is part of", Info::new(Cluster { name, id }));
    }
}

/// Kernel clock ticks per second, as programs see them: the same on every machine that runs Linux today.
const USER_HZ: f64 = 100.0;

/// From proc_pid_stat(5), proc_pid_status(5) and proc_stat(5). The second field of the first is the command in parentheses,
/// which may hold anything.
fn usage(stat: &str, status: &str, machine: &str) -> Option<Usage> {
    let line = |text: &str, key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
    let kilobytes: u64 = line(status, "VmRSS:")?.trim().trim_end_matches(" kB").parse().ok()?;
    let booted: u64 = line(machine, "btime ")?.trim().parse().ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The first of these is field 3 of the manual.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let seconds = |ticks: u64| ticks as f64 / USER_HZ;
    Some(Usage {
        cpu_seconds: seconds(number(14)? + number(15)?),
        resident_bytes: kilobytes * 1024,
        start_seconds: booted as f64 + seconds(number(22)?),
    })
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn kernel_stat_is_read_for_any_command_name() {
        let stat = "7 (muster) d (x) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 1000 900000 300 1844674";
        let seen = usage(stat, "Name:\tx\nVmRSS:\t    1200 kB\n", "cpu 1\nbtime 1700000000\n");
        let expected = Usage { cpu_seconds: 3.0, resident_bytes: 1200 * 1024, start_seconds: 1_700_000_010.0 };
        assert_eq!(seen, Some(expected));
        assert_eq!(usage("", "", ""), None);
    }

    #[test]
    fn a_process_and_its_build_have_the_usual_series() {
        let mut registry = Registry::default();
        register(&mut registry);
        infos(registry.sub_registry_with_prefix("muster"), "1.2.3", Some(("blue".to_owned(), "abc".to_owned())));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for begins in [
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_start_time_seconds 1",
            "process_open_fds ",
            "process_max_fds ",
            "muster_build_info{version=\"",
            "muster_cluster_info{name=\"blue\",id=\"abc\"} 1",
        ] {
            assert!(text.lines().any(|line| line.starts_with(begins)), "{begins}\n{text}");
        }
    }
}
