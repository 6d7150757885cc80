//! How a directory with an identity treats the flags that it is started with.

use muster_messages::{ClusterId, WallTime};
use muster_pki::Root;

use super::*;
use crate::daemon::config::{Args, load};

const ADVERTISE: &str = "10.0.0.9:4400";

async fn boot(config: &Config, advertise: &str) -> Result<Booted, Exit> {
    let store = IdentityStore::open(&config.data_dir)?;
    super::boot(config, &store, advertise).await
}

fn config(dir: &std::path::Path, flags: &[&str]) -> Config {
    let args = ["musterd", "--name", "n1", "--data-dir"].map(str::to_owned).into_iter();
    let args = args.chain([dir.display().to_string()]).chain(flags.iter().map(|flag| (*flag).to_owned()));
    load(Args::of(args).unwrap()).unwrap()
}

fn token(root_pem: &str) -> String {
    JoinToken::new(root_pem, muster_pki::new_token_secret()).unwrap().to_text()
}

/// S168, S169.
#[tokio::test]
async fn identity_wins_over_flags_but_not_over_a_foreign_token() {
    let dir = tempfile::tempdir().unwrap();
    let founded = boot(&config(dir.path(), &["--init"]), ADVERTISE).await.unwrap();
    let node = founded.credentials.identity.node();
    let ours = token(&founded.credentials.root_pem);
    let other = token(&Root::create(ClusterId::from_entropy(9), Clock.wall()).unwrap().cert_pem);

    let unused_addr = "127.0.0.1:9";
    let fine: [&[&str]; 6] = [
        &[],
        &["--init"],
        &["--join", unused_addr],
        &["--join", unused_addr, "--token", &ours],
        &["--join", unused_addr, "--token", "MSTR-1-cut"],
        // Perhaps in the environment of every process on that machine: it requests nothing.
        &["--token", &other],
    ];
    for flags in fine {
        let resumed =
            boot(&config(dir.path(), flags), ADVERTISE).await.unwrap_or_else(|exit| panic!("{flags:?}: {exit:?}"));
        assert_eq!(resumed.credentials.identity.node(), node, "{flags:?}");
    }

    let wrong: [&[&str]; 2] = [
        &["--join", unused_addr, "--token", &other],
        &["--join", unused_addr, "--token", &other, "--force-new-cluster"],
    ];
    for flags in wrong {
        let Err(exit) = boot(&config(dir.path(), flags), ADVERTISE).await else { panic!("{flags:?}: it resumed") };
        assert_eq!(exit.status, 6);
        let digests = [&ours, &other].map(|token| JoinToken::parse(token).unwrap().digest);
        let (id, cluster) = (node.unwrap().0.to_string(), founded.credentials.identity.cluster.to_string());
        for word in
            digests.iter().chain([&id, &cluster, &"digest_mismatch".to_owned(), &dir.path().display().to_string()])
        {
            assert!(exit.sentence.contains(word.as_str()), "{word}: {}", exit.sentence);
        }
    }
    // A founder interrupted before it had a certificate still is one.
    std::fs::remove_file(dir.path().join("identity").join("credentials.pem")).unwrap();
    let exit = boot(&config(dir.path(), wrong[0]), ADVERTISE).await.err().unwrap();
    assert!(exit.status == 6 && exit.sentence.contains("has begun to found"), "{}", exit.sentence);
}

/// B17: the daemon took the host's name then, and the cluster adopted it.
#[tokio::test]
async fn configured_name_stays_without_the_flag() {
    let dir = tempfile::tempdir().unwrap();
    boot(&config(dir.path(), &["--init"]), ADVERTISE).await.unwrap();
    let load = |flags: &[&str]| {
        let args = ["musterd", "--data-dir", dir.path().to_str().unwrap()].into_iter().chain(flags.iter().copied());
        with_kept_name(load(Args::of(args).unwrap()).unwrap()).unwrap().name
    };
    assert_eq!(load(&[]), "n1");
    assert_eq!(load(&["--name", "n2"]), "n2");
}

/// S15: text of an unverified server reached a joiner's terminal byte for byte.
#[test]
fn unverified_server_text_is_one_printable_line() {
    let stage = muster_agent::JoinStage::Digest;
    let text = "x\n2026-11-23T05:59:59 INFO \u{1b}[32mnew certificate\u{1b}]0;title\u{7}\r".to_owned();
    let progress = muster_agent::JoinProgress { addr: "192.0.2.1:4400".to_owned(), stage, text, lasts: None };
    let said = line(&progress);
    assert!(said.contains("new certificate") && !said.chars().any(char::is_control), "{said:?}");
}

/// One lying manager can report to all managers that they were removed: then none is left to check a token.
#[tokio::test]
async fn wrongly_removed_node_continues_with_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let founded = boot(&config(dir.path(), &["--init"]), ADVERTISE).await.unwrap();
    let (node, _) = founded.credentials.identity.node().unwrap();
    let cluster = founded.founding.as_ref().unwrap().cluster_record();
    let founder =
        muster_messages::NodeRecord::new(node, "n1".parse().unwrap(), muster_messages::Role::Manager, Clock.wall());
    let found =
        muster_messages::Change::Found { cluster: Box::new(cluster), founder: Box::new(founder), tokens: vec![] };
    let command = muster_messages::Command::idempotent(Clock.wall(), muster_messages::Principal::Operator, "a test");
    let mut tables = muster_messages::Tables::default();
    muster_store::apply(&mut tables, muster_messages::Revision(1), &command.change(found)).unwrap();
    let keys = founded.memory.store().keys();
    muster_raft_member::recovery::replace(&dir.path().join("raft"), keys, muster_messages::RaftId(1), 1, tables)
        .unwrap();
    founded.memory.store().finish_founding().unwrap();
    let ended = muster_pki::Ended {
        reason: muster_messages::RefusalReason::Removed,
        message: "it said".to_owned(),
        at: Clock.wall(),
    };
    founded.memory.update(|local| local.ended = Some(ended.clone())).unwrap();

    // The file of a token that admitted it once is gone.
    for flags in [&[][..], &["--join", "127.0.0.1:9", "--token-file", "/nowhere"]] {
        let exit = boot(&config(dir.path(), flags), ADVERTISE).await.err().unwrap();
        assert!(exit.status == 6 && exit.sentence.contains("a token of its role"), "{}", exit.sentence);
    }
    let flags = ["--join", "127.0.0.1:9", "--token", &token(&founded.credentials.root_pem)];
    let resumed = boot(&config(dir.path(), &flags), ADVERTISE).await.unwrap();
    assert_eq!(resumed.credentials.identity, founded.credentials.identity);
    assert_eq!(resumed.memory.load().unwrap().ended, None);
}

/// B14.
#[test]
fn future_certificate_is_not_valid_now() {
    let made = |at: WallTime| {
        let id = ClusterId::from_entropy(9);
        let root = Root::create(id, Clock.wall()).unwrap();
        let cluster = muster_messages::ClusterRecord {
            id,
            name: "default".parse().unwrap(),
            incarnation: muster_messages::FIRST_INCARNATION,
            feature_level: 3,
            root_cert_pem: root.cert_pem.clone(),
            root_key_pem: root.key_pem,
            founded_at: at,
            revision: muster_messages::Revision(0),
        };
        let key = muster_pki::new_key();
        let node = muster_messages::NodeId::from_entropy(1);
        let signed =
            muster_pki::sign_for_itself(&cluster, node, None, ADVERTISE, muster_pki::NODE_LIFETIME, (at, &key));
        muster_pki::credentials(key, signed.unwrap().cert_pem, root.cert_pem).unwrap()
    };
    let day = std::time::Duration::from_secs(24 * 3600);
    assert!(is_valid(&made(Clock.wall())));
    assert!(!is_valid(&made(Clock.wall().plus(day))), "signed by a clock that was a day ahead");
    assert!(!is_expired(&made(Clock.wall().plus(day))));
}

/// A unit file keeps the token of the day on which its node joined, however often the cluster has replaced its root since.
#[tokio::test]
async fn token_of_a_former_root_does_not_keep_a_node_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let founded = boot(&config(dir.path(), &["--init"]), ADVERTISE).await.unwrap().credentials;
    let store = IdentityStore::open(dir.path()).unwrap();
    let other = Root::create(founded.identity.cluster, Clock.wall()).unwrap().cert_pem;
    let flags = ["--join", "127.0.0.1:9", "--token", &token(&other)];
    let starts = async || boot(&config(dir.path(), &flags), ADVERTISE).await.is_ok();
    assert!(!starts().await, "a root that it never trusted");
    let both = format!("{}{other}", founded.root_pem);
    store.save_credentials(&NodeCredentials { root_pem: both, ..founded.clone() }).unwrap();
    assert!(starts().await, "a root that it trusts");
    store.save_credentials(&founded).unwrap();
    assert!(starts().await, "a root that it trusted");
}
