use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use muster_testkit::eventually;
use tempfile::TempDir;

use super::*;

const SMALL: Limits = Limits { file_bytes: 100, files_per_run: 3, runs: 3, bytes: 1 << 20 };

fn run(term: u64, of_term: u64) -> RunKey {
    RunKey { reconciler: "people".to_owned(), term: FencingToken(term), of_term }
}

fn ask((term, of_term): (u64, u64), offset: u64, wait_ms: u64) -> RunLogAsk {
    RunLogAsk { run: run(term, of_term), offset, wait_ms }
}

struct Disk {
    logs: Arc<RunLogs>,
    dir: TempDir,
}

impl Disk {
    fn new(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { logs: RunLogs::within(dir.path(), limits), dir }
    }
    async fn page(&self, run: (u64, u64), offset: u64) -> RunLogPart {
        self.logs.part(&ask(run, offset, 0)).await.unwrap()
    }
    /// Everything that can be read, and how much of it is missing.
    async fn whole(&self, run: (u64, u64)) -> (String, u64) {
        let (mut text, mut skipped, mut offset) = (String::new(), 0, 0);
        loop {
            let page = self.page(run, offset).await;
            (text, skipped, offset) = (text + &page.text, skipped + page.skipped, page.next_offset);
            if page.text.is_empty() {
                return (text, skipped);
            }
        }
    }
    async fn ended(&self) {
        eventually("its log has ended", || self.logs.running().is_empty()).await;
    }
    /// A whole run.
    async fn keep(&self, key: &RunKey, output: &[u8]) {
        let mut log = self.logs.begin(key);
        for chunk in output.chunks(64) {
            log.write(chunk).await;
        }
        drop(log);
        self.ended().await;
    }
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("runs/people")).unwrap();
        let mut files: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        files.sort_unstable();
        files
    }
}

#[tokio::test]
async fn output_is_read_while_it_is_written() {
    let disk = Disk::new(Limits::DEFAULT);
    let mut log = disk.logs.begin(&run(7, 1));
    let newest = |offset| ask((7, 1), offset, 60_000);
    let logs = Arc::clone(&disk.logs);
    let waiting = tokio::spawn(async move { RunLogs::part(&logs, &newest(0)).await });
    log.write(b"one\n").await;
    let page = waiting.await.unwrap().unwrap();
    assert_eq!((page.text.as_str(), page.next_offset, page.running), ("one\n", 4, true));
    let logs = Arc::clone(&disk.logs);
    let waiting = tokio::spawn(async move { RunLogs::part(&logs, &newest(4)).await });
    log.write(b"two").await;
    assert_eq!(waiting.await.unwrap().unwrap().text, "two");
    // Nothing follows: the wait ends after its time, or with the run.
    let page = disk.logs.part(&ask((7, 1), 7, 50)).await.unwrap();
    assert_eq!((page.text.as_str(), page.next_offset, page.running), ("", 7, true));
    drop(log);
    disk.ended().await;
    let page = disk.logs.part(&ask((7, 1), 7, 60_000)).await.unwrap();
    assert_eq!((page.text.as_str(), page.next_offset, page.running), ("", 7, false));
}

#[tokio::test]
async fn logs_outlive_a_restart() {
    let disk = Disk::new(Limits::DEFAULT);
    disk.keep(&run(6, 1), b"").await;
    assert_eq!(disk.whole((6, 1)).await, (String::new(), 0), "it wrote nothing, which is known");
    disk.keep(&run(7, 1), b"first").await;
    disk.keep(&run(7, 12), b"second").await;
    let after = Disk { logs: RunLogs::within(disk.dir.path(), Limits::DEFAULT), dir: disk.dir };
    assert_eq!(after.whole((7, 1)).await.0, "first");
    let second = after.logs.part(&ask((7, 12), 0, 60_000)).await.unwrap();
    assert_eq!((second.text.as_str(), second.running), ("second", false));
    assert_eq!(after.page((7, 2), 0).await, RunLogPart::default());
}

#[tokio::test]
async fn first_and_newest_parts_of_a_long_output_stay() {
    let disk = Disk::new(SMALL);
    let output: String = (0..1000).map(|n| format!("{n:09}\n")).collect();
    disk.keep(&run(7, 1), output.as_bytes()).await;
    let (text, skipped) = disk.whole((7, 1)).await;
    assert_eq!((text.len(), skipped), (300, 9_700));
    assert_eq!(text, output[..100].to_owned() + &output[9_800..]);
    assert_eq!(disk.files(), ["7-1-0.log", "7-1-9800.log", "7-1-9900.log"]);
    // Positions keep their meaning: a reader that was behind continues after the gap.
    let page = disk.page((7, 1), 5_000).await;
    assert_eq!((page.offset, page.skipped, page.text.len()), (9_800, 4_800, 200));
}

#[tokio::test]
async fn older_runs_make_room_and_running_ones_stay() {
    let disk = Disk::new(SMALL);
    let mut unfinished = disk.logs.begin(&run(1, 1));
    unfinished.write(b"still here").await;
    eventually("it is on disk", || disk.dir.path().join("runs/people/1-1-0.log").exists()).await;
    for of_term in 1..=6 {
        let key = run(2, of_term);
        let mut log = disk.logs.begin(&key);
        log.write(b"out").await;
        drop(log);
        eventually("it has ended", || !disk.logs.running().contains_key(&key)).await;
    }
    drop(unfinished);
    assert_eq!(disk.files(), ["1-1-0.log", "2-5-0.log", "2-6-0.log"]);
    // Of all reconcilers together, also beside something that cannot be listed.
    let little = Limits { bytes: 5 * 4096 + 300, ..SMALL };
    let disk = Disk::new(little);
    fs::create_dir_all(disk.dir.path().join("runs")).unwrap();
    fs::write(disk.dir.path().join("runs/stray"), "").unwrap();
    for (term, reconciler) in (1..).zip(["a", "b", "c", "d", "e", "f", "g"]) {
        let key = RunKey { reconciler: reconciler.to_owned(), ..run(term, 1) };
        disk.keep(&key, b"out").await;
    }
    let kept: Vec<bool> = ["a", "b", "c"]
        .iter()
        .map(|name| fs::read_dir(disk.dir.path().join("runs").join(name)).unwrap().count() > 0)
        .collect();
    assert_eq!(kept, [false, true, true]);
}

#[tokio::test]
async fn names_do_not_lead_out_of_the_folder() {
    let disk = Disk::new(Limits::DEFAULT);
    for name in ["..", ".", "", "a/b", "../escaped", "/etc", "A", "a\0b"] {
        let key = RunKey { reconciler: name.to_owned(), ..run(1, 1) };
        disk.keep(&key, b"out").await;
        let read = disk.logs.part(&RunLogAsk { run: key, offset: 0, wait_ms: 0 }).await;
        assert_eq!(read.unwrap_err().code, ErrorCode::Invalid, "{name:?}");
    }
    assert_eq!(disk.logs.lost_bytes(), 8 * 3);
    assert!(!disk.dir.path().join("runs").exists() && !disk.dir.path().join("escaped").exists());
    // Nor does a link that another program has put there.
    let outside = disk.dir.path().join("outside");
    fs::write(&outside, "secret").unwrap();
    fs::create_dir_all(disk.dir.path().join("runs/people")).unwrap();
    symlink(&outside, disk.dir.path().join("runs/people/7-1-0.log")).unwrap();
    assert!(!disk.page((7, 1), 0).await.kept);
    disk.keep(&run(7, 1), b"out").await;
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
}

#[tokio::test]
async fn only_the_owner_can_read_a_log() {
    let disk = Disk::new(Limits::DEFAULT);
    disk.keep(&run(7, 1), b"out").await;
    let mode = |path: &str| fs::metadata(disk.dir.path().join(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("runs"), mode("runs/people"), mode("runs/people/7-1-0.log")), (0o700, 0o700, 0o600));
}

#[tokio::test]
async fn disk_that_takes_nothing_costs_only_the_log() {
    let disk = Disk::new(Limits::DEFAULT);
    let in_the_way = disk.dir.path().join("runs");
    fs::write(&in_the_way, "").unwrap();
    let mut log = disk.logs.begin(&run(7, 1));
    log.write(b"lost ").await;
    eventually("it is counted", || disk.logs.lost_bytes() == 5).await;
    fs::remove_file(in_the_way).unwrap();
    log.write(b"kept").await;
    drop(log);
    disk.ended().await;
    let page = disk.page((7, 1), 0).await;
    assert_eq!((page.text.as_str(), page.offset, page.skipped), ("kept", 5, 5));
}

/// A log whose chunks nothing takes unless the test does.
fn unwritten(disk: &Disk, queued: usize) -> (RunLog, mpsc::Receiver<Chunk>) {
    let (queue, chunks) = mpsc::channel(queued);
    let (logs, missing) = (Arc::clone(&disk.logs), Arc::default());
    (RunLog { logs, key: run(7, 1), queue: Ok(queue), wait_left: DISK_TIMEOUT, missing }, chunks)
}

/// RUNLOG-3.
#[tokio::test(start_paused = true)]
async fn disk_that_takes_nothing_delays_a_run_by_a_second() {
    let disk = Disk::new(Limits::DEFAULT);
    let (mut log, mut chunks) = unwritten(&disk, MAX_QUEUED_CHUNKS);
    let began = Instant::now();
    for _ in 0..MAX_QUEUED_CHUNKS + 1_000 {
        log.write(b"line").await;
    }
    assert_eq!((began.elapsed(), disk.logs.lost_bytes()), (DISK_TIMEOUT, 4_000));
    for _ in 0..MAX_QUEUED_CHUNKS {
        assert_eq!(chunks.recv().await.unwrap().skipped, 0);
    }
    log.write(b"back").await;
    let next = chunks.recv().await.unwrap();
    assert_eq!((next.skipped, next.bytes.as_slice()), (4_000, &b"back"[..]));
}

/// RUNLOG-3.
#[tokio::test(start_paused = true)]
async fn slow_disk_delays_a_run_by_a_second_in_all() {
    let disk = Disk::new(Limits::DEFAULT);
    let (mut log, mut chunks) = unwritten(&disk, 4);
    let slow = tokio::spawn(async move {
        while chunks.recv().await.is_some() {
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
    });
    let mut waited = Duration::ZERO;
    for _ in 0..200 {
        let began = Instant::now();
        log.write(b"line").await;
        waited += began.elapsed();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(waited <= DISK_TIMEOUT && disk.logs.lost_bytes() > 0, "{waited:?}");
    slow.abort();
}

#[tokio::test]
async fn missing_end_of_an_output_is_known() {
    for (written, lost) in [(&b"kept"[..], &b"its end"[..]), (b"", b"all of it")] {
        let disk = Disk::new(Limits::DEFAULT);
        let (mut log, chunks) = unwritten(&disk, 1);
        log.wait_left = Duration::ZERO;
        log.write(written).await;
        log.write(lost).await;
        let (logs, missing) = (Arc::clone(&disk.logs), Arc::clone(&log.missing));
        drop(log);
        let keep = move || logs.keep(&run(7, 1), chunks, &watch::Sender::new(0), &missing);
        tokio::task::spawn_blocking(keep).await.unwrap();
        let kept = String::from_utf8(written.to_vec()).unwrap();
        assert_eq!(disk.whole((7, 1)).await, (kept, size(lost)));
    }
}

/// Beyond the limit a run costs no thread, and what it writes is counted as lost.
#[tokio::test]
async fn logs_are_written_by_a_limited_number_of_threads() {
    let disk = Disk::new(Limits::DEFAULT);
    let mut logs: Vec<RunLog> = (1..=64).map(|of_term| disk.logs.begin(&run(1, of_term))).collect();
    let mut one_more = disk.logs.begin(&run(2, 1));
    one_more.write(b"lost").await;
    assert_eq!((disk.logs.running().len(), disk.logs.lost_bytes()), (MAX_WRITERS, 4));
    logs.clear();
    disk.ended().await;
    disk.keep(&run(2, 2), b"kept").await;
    assert_eq!(disk.whole((2, 2)).await.0, "kept");
}

#[tokio::test]
async fn second_log_of_a_run_does_not_replace_the_first() {
    let disk = Disk::new(Limits::DEFAULT);
    let (mut first, mut second) = (disk.logs.begin(&run(7, 1)), disk.logs.begin(&run(7, 1)));
    second.write(b"second").await;
    first.write(b"first").await;
    assert_eq!(disk.logs.lost_bytes(), 6);
    drop((first, second));
    disk.ended().await;
    assert_eq!(disk.whole((7, 1)).await, ("first".to_owned(), 0));
}

#[tokio::test(start_paused = true)]
async fn few_readers_wait_and_further_ones_are_answered_at_once() {
    let disk = Disk::new(Limits::DEFAULT);
    // A writer's thread would keep the clock from advancing.
    let (_written, progress) = watch::channel(0);
    disk.logs.running().insert(run(7, 1), progress);
    let began = Instant::now();
    let readers = (0..=MAX_WAITING).map(|_| {
        let logs = Arc::clone(&disk.logs);
        tokio::spawn(async move {
            let part = logs.part(&ask((7, 1), 0, 60_000)).await.unwrap();
            assert!(part.running && part.text.is_empty());
            began.elapsed()
        })
    });
    let mut waited = Vec::new();
    for reader in readers.collect::<Vec<_>>() {
        waited.push(reader.await.unwrap().as_secs());
    }
    waited.sort_unstable();
    assert_eq!(waited, [0, 2, 2, 2, 2]);
}

#[tokio::test(start_paused = true)]
async fn busy_run_does_not_prolong_a_readers_wait() {
    let (written, mut progress) = watch::channel(0);
    let until = Instant::now() + MAX_WAIT;
    written.send_replace(1);
    assert!(has_news(&mut progress, until).await);
    tokio::time::advance(MAX_WAIT).await;
    written.send_replace(2);
    assert!(!has_news(&mut progress, until).await);
}

#[tokio::test]
async fn characters_are_whole_wherever_parts_end() {
    let disk = Disk::new(SMALL);
    let mut log = disk.logs.begin(&run(7, 1));
    let output = "ä€🦀".repeat(20);
    for byte in output.as_bytes().chunks(1) {
        log.write(byte).await;
    }
    eventually("it is on disk", || disk.dir.path().join("runs/people/7-1-100.log").exists()).await;
    let so_far = disk.page((7, 1), 0).await.text;
    assert!(output.starts_with(&so_far) && so_far.len() > 90, "{so_far}");
    log.write(b"\xff\xe2\x82").await;
    drop(log);
    disk.ended().await;
    // Bytes that are no characters are replaced, also at the end.
    assert_eq!(disk.whole((7, 1)).await, (output + "\u{fffd}\u{fffd}", 0));
}
