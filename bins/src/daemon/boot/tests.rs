//! What a directory that belongs to somebody makes of the flags it is started with.

use clap::Parser;
use muster_messages::ClusterId;
use muster_pki::Root;

use super::*;
use crate::daemon::config::{Args, load};

const ADVERTISE: &str = "10.0.0.9:4400";

fn config(dir: &std::path::Path, flags: &[&str]) -> Config {
    let args = ["musterd", "--name", "n1", "--data-dir"].map(str::to_owned).into_iter();
    let args = args.chain([dir.display().to_string()]).chain(flags.iter().map(|flag| (*flag).to_owned()));
    load(Args::try_parse_from(args).unwrap()).unwrap().0
}

fn token(root_pem: &str) -> String {
    JoinToken::new(root_pem, muster_pki::new_token_secret()).unwrap().to_text()
}

/// S168, S169.
#[tokio::test]
async fn an_identity_wins_over_flags_but_not_over_a_token_of_another_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let founded = boot(&config(dir.path(), &["--init"]), ADVERTISE).await.unwrap();
    let node = founded.credentials.identity.node();
    let ours = token(&founded.credentials.root_pem);
    let other = token(&Root::create(ClusterId::from_entropy(9), Clock.wall()).unwrap().cert_pem);

    let nobody = "127.0.0.1:9";
    let fine: [&[&str]; 6] = [
        &[],
        &["--init"],
        &["--join", nobody],
        &["--join", nobody, "--token", &ours],
        &["--join", nobody, "--token", "MSTR-1-cut"],
        // In the environment of everything on that machine, perhaps: nothing was asked of it.
        &["--token", &other],
    ];
    for flags in fine {
        let resumed =
            boot(&config(dir.path(), flags), ADVERTISE).await.unwrap_or_else(|exit| panic!("{flags:?}: {exit:?}"));
        assert_eq!(resumed.credentials.identity.node(), node, "{flags:?}");
    }

    let wrong: [&[&str]; 2] =
        [&["--join", nobody, "--token", &other], &["--join", nobody, "--token", &other, "--force-new-cluster"]];
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
    // Interrupted before it had a certificate, a founder is one all the same.
    std::fs::remove_file(dir.path().join("identity").join("credentials.pem")).unwrap();
    let exit = boot(&config(dir.path(), wrong[0]), ADVERTISE).await.err().unwrap();
    assert!(exit.status == 6 && exit.sentence.contains("has begun to found"), "{}", exit.sentence);
}
