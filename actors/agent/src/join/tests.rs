//! Claims about joining, with a scripted cluster and paused time.

use std::sync::Mutex;

use muster_messages::{NodeId, RefusalReason, RequestId, Secret};

use super::*;

/// Answers tries in order, each for the address it names; records whom it was asked through.
struct Script {
    answers: Mutex<VecDeque<(&'static str, Result<Yes, No>)>>,
    last: Result<Yes, No>,
    asked: Mutex<Vec<(String, RequestId)>>,
}

impl Try for Script {
    async fn attempt(&self, addr: &str, _: &JoinToken, request: &JoinRequest) -> Result<Yes, No> {
        self.asked.lock().unwrap().push((addr.to_owned(), request.request_id));
        let mut answers = self.answers.lock().unwrap();
        match answers.iter().position(|(a, _)| *a == addr) {
            Some(i) => answers.remove(i).unwrap().1,
            None => self.last.clone(),
        }
    }
}

fn yes() -> Result<Yes, No> {
    Ok(Yes { cert_pem: String::new(), root_pem: String::new(), managers: vec![] })
}
fn broken(stage: JoinStage, text: &str) -> Result<Yes, No> {
    Err(No { stage, why: Why::Broken(text.to_owned()) })
}
fn judged(code: ErrorCode) -> Result<Yes, No> {
    Err(No { stage: JoinStage::Token, why: Why::Judged(ErrorBody::new(code, "because")) })
}
fn turned(reason: RefusalReason, managers: &[&str]) -> Result<Yes, No> {
    let managers = managers.iter().map(|m| (*m).to_owned()).collect();
    let refusal = Refusal { reason, message: "because".to_owned(), managers, retry_after_ms: None };
    Err(No { stage: JoinStage::Token, why: Why::Turned(refusal) })
}

fn join_request() -> JoinRequest {
    JoinRequest {
        request_id: RequestId(77),
        node: NodeId::from_entropy(1),
        token_secret: Secret::new("s"),
        csr_pem: String::new(),
        name: Name::sanitized("n1"),
        advertise: "127.0.0.1:1".to_owned(),
        release: "0.1.0".to_owned(),
        labels: BTreeMap::new(),
        rekey: None,
    }
}

struct Told {
    result: Result<Yes, JoinError>,
    lines: Vec<String>,
    asked: Vec<(String, RequestId)>,
}

async fn tell(answers: Vec<(&'static str, Result<Yes, No>)>, last: Result<Yes, No>, addrs: &[&str]) -> Told {
    let script = Script { answers: Mutex::new(answers.into()), last, asked: Mutex::default() };
    let lines = Mutex::new(vec![]);
    let addrs: Vec<String> = addrs.iter().map(|a| (*a).to_owned()).collect();
    let token = JoinToken { digest: String::new(), secret: Secret::new("s") };
    let config = JoinConfig::default();
    let progress = |p: &JoinProgress| lines.lock().unwrap().push(p.to_string());
    let result = seek(&script, &addrs, &token, join_request(), &config, progress).await;
    Told { result, lines: lines.into_inner().unwrap(), asked: script.asked.into_inner().unwrap() }
}

#[tokio::test(start_paused = true)]
async fn only_refusals_that_no_waiting_changes_end_a_join() {
    use ErrorCode as C;
    for code in [C::DigestMismatch, C::BadToken, C::TokenExpired, C::TokenUsedUp, C::Blocked] {
        let told = tell(vec![], judged(code), &["a:1"]).await;
        assert!(matches!(&told.result, Err(e @ JoinError::Refused(b)) if b.code == code && e.exit_status() == 6));
        assert_eq!(told.asked.len(), 1);
    }
    for code in [
        C::NoQuorum,
        C::Unreachable,
        C::NotKnownHereYet,
        C::TimedOut,
        C::UnknownOutcome,
        C::TooManyRequests,
        C::Internal,
    ] {
        let told = tell(vec![("a:1", judged(code)), ("a:1", judged(code))], yes(), &["a:1"]).await;
        assert!(told.result.is_ok(), "{code}");
        assert_eq!(told.asked.len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn each_change_of_stage_is_one_line_that_names_address_and_cause() {
    let refused = || broken(JoinStage::Connect, "cannot connect to a:1: connection refused");
    let mut answers = vec![("a:1", broken(JoinStage::Resolve, "no such host"))];
    answers.extend((0..200).map(|_| ("a:1", refused())));
    answers.extend((0..50).map(|_| ("a:1", judged(ErrorCode::NoQuorum))));
    let told = tell(answers, yes(), &["a:1"]).await;
    // What lasts is said again now and then: whoever comes late sees that it goes on, and for how long.
    let (reminders, lines): (Vec<_>, Vec<_>) = told.lines.into_iter().partition(|line| line.contains(" now)"));
    assert!((2..8).contains(&reminders.len()), "{reminders:?}");
    assert!(reminders[0].ends_with("connection refused (for 1 min now)"), "{reminders:?}");
    assert_eq!(
        lines,
        [
            "joining through a:1: resolve: no such host".to_owned(),
            "joining through a:1: connect: cannot connect to a:1: connection refused".to_owned(),
            "joining through a:1: token: no_quorum: because".to_owned(),
            format!("joining through a:1: joined: node {}", NodeId::from_entropy(1)),
        ]
    );
}

/// E41. The line names the time, which is another one at each try.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_wrong_is_one_line_however_often_it_is_met() {
    let clock = |n: u32| Err(No { stage: JoinStage::Tls, why: Why::Clock(format!("the clock says {n}")) });
    let told = tell((0..9).map(|n| ("a:1", clock(n))).collect(), yes(), &["a:1"]).await;
    assert_eq!(told.lines[0], "joining through a:1: TLS: the clock says 0");
    assert_eq!(told.lines.len(), 2, "and that it has joined: {:?}", told.lines);
}

#[tokio::test(start_paused = true)]
async fn a_worker_leads_the_joiner_to_its_managers_in_the_same_round() {
    let answers = vec![("w:1", turned(RefusalReason::NotAManager, &["m:1"])), ("m:1", yes())];
    let started = tokio::time::Instant::now();
    let told = tell(answers, broken(JoinStage::Connect, "x"), &["w:1"]).await;
    assert!(told.result.is_ok());
    assert_eq!(started.elapsed(), Duration::ZERO);
    let through: Vec<&str> = told.asked.iter().map(|(a, _)| a.as_str()).collect();
    assert_eq!(through, ["w:1", "m:1"]);
}

#[tokio::test(start_paused = true)]
async fn every_retry_is_the_same_request_and_pauses_stay_under_the_cap() {
    let answers = (0..100).map(|_| ("a:1", judged(ErrorCode::NoQuorum))).collect();
    let started = tokio::time::Instant::now();
    let told = tell(answers, yes(), &["a:1"]).await;
    assert!(told.asked.iter().all(|(_, id)| *id == RequestId(77)));
    assert!(started.elapsed() <= Duration::from_secs(5) * 100);
}

#[tokio::test]
async fn a_mangled_token_is_refused_before_anything_is_dialled_or_written() {
    let dir = tempfile::tempdir().unwrap();
    let memory = NodeMemory::new(muster_pki::IdentityStore::open(dir.path()).unwrap());
    let args = JoinArgs {
        addrs: vec!["127.0.0.1:1".to_owned()],
        token: "MSTR-1-cut".to_owned(),
        name: Name::sanitized("n1"),
        advertise: "127.0.0.1:2".to_owned(),
        release: "0.1.0".to_owned(),
        labels: BTreeMap::new(),
        rekey: None,
    };
    let result = join(&memory, args, &JoinConfig::default(), |_| {}).await;
    assert!(matches!(result, Err(JoinError::Refused(e)) if e.code == ErrorCode::BadToken));
}
