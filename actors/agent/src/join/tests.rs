//! Tests of joining, with a scripted cluster and paused time.

use std::sync::Mutex;

use muster_messages::{NodeId, RefusalReason, RequestId, Secret};

use super::*;

/// Answers attempts in order, each for the address it names; records the addresses tried.
struct Script {
    answers: Mutex<VecDeque<(&'static str, Result<Acceptance, AttemptFailure>)>>,
    last: Result<Acceptance, AttemptFailure>,
    asked: Mutex<Vec<(String, RequestId)>>,
}

impl Try for Script {
    async fn attempt(&self, addr: &str, _: &JoinToken, request: &JoinRequest) -> Result<Acceptance, AttemptFailure> {
        self.asked.lock().unwrap().push((addr.to_owned(), request.request_id));
        let mut answers = self.answers.lock().unwrap();
        match answers.iter().position(|(a, _)| *a == addr) {
            Some(i) => answers.remove(i).unwrap().1,
            None => self.last.clone(),
        }
    }
}

fn acceptance() -> Result<Acceptance, AttemptFailure> {
    Ok(Acceptance { cert_pem: String::new(), roots_pem: String::new(), managers: vec![] })
}
fn broken(stage: JoinStage, text: &str) -> Result<Acceptance, AttemptFailure> {
    Err(AttemptFailure { stage, why: FailureReason::Broken(text.to_owned()) })
}
fn decided(code: ErrorCode) -> Result<Acceptance, AttemptFailure> {
    Err(AttemptFailure { stage: JoinStage::Token, why: FailureReason::Decided(ErrorBody::new(code, "because")) })
}
fn turned(reason: RefusalReason, managers: &[&str]) -> Result<Acceptance, AttemptFailure> {
    let managers = managers.iter().map(|m| (*m).to_owned()).collect();
    let refusal = Refusal { reason, message: "because".to_owned(), managers, retry_after_ms: None };
    Err(AttemptFailure { stage: JoinStage::Token, why: FailureReason::Rejected(refusal) })
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

struct Run {
    result: Result<Acceptance, JoinError>,
    lines: Vec<String>,
    asked: Vec<(String, RequestId)>,
}

async fn run_join(
    answers: Vec<(&'static str, Result<Acceptance, AttemptFailure>)>,
    last: Result<Acceptance, AttemptFailure>,
    addrs: &[&str],
) -> Run {
    let script = Script { answers: Mutex::new(answers.into()), last, asked: Mutex::default() };
    let lines = Mutex::new(vec![]);
    let addrs: Vec<String> = addrs.iter().map(|a| (*a).to_owned()).collect();
    let token = JoinToken { digest: String::new(), secret: Secret::new("s") };
    let config = JoinConfig::default();
    let progress = |p: &JoinProgress| lines.lock().unwrap().push(p.to_string());
    let result = seek(&script, &addrs, &token, join_request(), &config, progress).await;
    Run { result, lines: lines.into_inner().unwrap(), asked: script.asked.into_inner().unwrap() }
}

#[tokio::test(start_paused = true)]
async fn only_permanent_refusals_end_a_join() {
    use ErrorCode as C;
    for code in [C::DigestMismatch, C::BadToken, C::TokenExpired, C::TokenUsedUp, C::Blocked] {
        let run = run_join(vec![], decided(code), &["a:1"]).await;
        assert!(matches!(&run.result, Err(e @ JoinError::Refused(b)) if b.code == code && e.exit_status() == 6));
        assert_eq!(run.asked.len(), 1);
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
        let run = run_join(vec![("a:1", decided(code)), ("a:1", decided(code))], acceptance(), &["a:1"]).await;
        assert!(run.result.is_ok(), "{code}");
        assert_eq!(run.asked.len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn each_stage_change_is_one_line_with_address_and_cause() {
    let refused = || broken(JoinStage::Connect, "cannot connect to a:1: connection refused");
    let mut answers = vec![("a:1", broken(JoinStage::Resolve, "no such host"))];
    answers.extend((0..200).map(|_| ("a:1", refused())));
    answers.extend((0..50).map(|_| ("a:1", decided(ErrorCode::NoQuorum))));
    let run = run_join(answers, acceptance(), &["a:1"]).await;
    // A failure that lasts is reported again now and then: a late reader sees that it continues, and
    // for how long.
    let (reminders, lines): (Vec<_>, Vec<_>) = run.lines.into_iter().partition(|line| line.contains(" now)"));
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

/// E41. The line names the time, which differs at each attempt.
#[tokio::test(start_paused = true)]
async fn wrong_clock_is_reported_in_one_line() {
    let clock = |n: u32| {
        Err(AttemptFailure { stage: JoinStage::Tls, why: FailureReason::Clock(format!("the clock says {n}")) })
    };
    let run = run_join((0..9).map(|n| ("a:1", clock(n))).collect(), acceptance(), &["a:1"]).await;
    assert_eq!(run.lines[0], "joining through a:1: TLS: the clock says 0");
    assert_eq!(run.lines.len(), 2, "and that it has joined: {:?}", run.lines);
}

#[tokio::test(start_paused = true)]
async fn a_worker_leads_the_joiner_to_its_managers_in_the_same_round() {
    let answers = vec![("w:1", turned(RefusalReason::NotAManager, &["m:1"])), ("m:1", acceptance())];
    let started = tokio::time::Instant::now();
    let run = run_join(answers, broken(JoinStage::Connect, "x"), &["w:1"]).await;
    assert!(run.result.is_ok());
    assert_eq!(started.elapsed(), Duration::ZERO);
    let through: Vec<&str> = run.asked.iter().map(|(a, _)| a.as_str()).collect();
    assert_eq!(through, ["w:1", "m:1"]);
}

#[tokio::test(start_paused = true)]
async fn every_retry_sends_the_same_request_with_capped_pauses() {
    let answers = (0..100).map(|_| ("a:1", decided(ErrorCode::NoQuorum))).collect();
    let started = tokio::time::Instant::now();
    let run = run_join(answers, acceptance(), &["a:1"]).await;
    assert!(run.asked.iter().all(|(_, id)| *id == RequestId(77)));
    assert!(started.elapsed() <= Duration::from_secs(5) * 100);
}

/// Whatever it refuses with: it is not verified yet.
#[tokio::test(start_paused = true)]
async fn peer_that_refuses_a_question_is_asked_again_when_it_says() {
    let error = ErrorBody::new(ErrorCode::Blocked, "because").retry_after(Duration::from_secs(4));
    let why = unexpected("a:1", JoinReply::Refused(error));
    let busy = Err(AttemptFailure { stage: JoinStage::Digest, why });
    let started = tokio::time::Instant::now();
    let run = run_join(vec![("a:1", busy)], acceptance(), &["a:1"]).await;
    assert!(run.result.is_ok(), "{:?}", run.result);
    assert_eq!(run.lines[0], "joining through a:1: digest: blocked: because");
    assert_eq!(started.elapsed(), Duration::from_secs(4));
}

#[tokio::test]
async fn malformed_token_is_refused_before_any_dial_or_write() {
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
