//! `muster ca …`

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use muster_client::{Failure, Outcome, RotationGoal, Target, parse};
use muster_messages::wire::Request;
use muster_messages::{
    AuthorityOrigin, AuthorityState, CaView, ErrorCode, RootChangeView, RootId, RootView, RootsView, RootsWaitReason,
    word,
};
use muster_pki::{BadIssued, MAX_ANSWER};
use serde_json::{Map, Value};

use super::Context;
use crate::cli::args::{CaCommand, RootArg, RotateArgs};
use crate::cli::output::{lines, printable_lines};
use crate::cli::render;

/// The shortest beginning of an id that names a root.
const MIN_ROOT_PREFIX: usize = 4;

pub async fn run(ctx: &mut Context, command: CaCommand) -> Outcome<u8> {
    match command {
        CaCommand::Show { bundle: false } => {
            ctx.show(Request::CaShow, |ca: &CaView| ca.digest.clone(), render::ca).await
        }
        CaCommand::Show { bundle: true } => ctx.show(Request::CaShow, render::bundle, render::bundle).await,
        CaCommand::Ls => {
            let ids = |roots: &RootsView| lines(roots.items.iter().map(|root| root.id));
            ctx.show(Request::RootList, ids, render::roots).await
        }
        CaCommand::Status => ctx.show(Request::RootList, |roots: &RootsView| word(roots.phase), render::rotation).await,
        CaCommand::Rotate(args) => rotate(ctx, args).await,
        CaCommand::Activate(root) => {
            let request = Request::RootActivate { root: resolve(ctx, root).await? };
            change(ctx, request, |root, changed| match changed {
                true => format!("root {root} signs; the nodes renew their certificates: `muster ca status`"),
                false => format!("root {root} signs already"),
            })
            .await
        }
        CaCommand::Abort => {
            change(ctx, Request::RootAbort, |root, changed| match changed {
                true => format!("root {root} was deleted; it has signed nothing"),
                false => "no root is waiting to sign".to_owned(),
            })
            .await
        }
        CaCommand::Retire { root, force } => {
            let request = Request::RootRetire { root: resolve(ctx, root).await?, force };
            change(ctx, request, |root, changed| match changed {
                true => format!("root {root} is retired: its key is deleted, and nodes stop trusting it"),
                false => format!("root {root} is retired already"),
            })
            .await
        }
        CaCommand::Revoke(root) => {
            let request = Request::RootRevoke { root: resolve(ctx, root).await? };
            change(ctx, request, |root, changed| match changed {
                true => format!("root {root} is revoked: its certificates are accepted only to replace them"),
                false => format!("root {root} is revoked already"),
            })
            .await
        }
    }
}

/// The root that the argument means.
async fn resolve(ctx: &mut Context, RootArg { root }: RootArg) -> Outcome<RootId> {
    if let Ok(id) = root.parse() {
        return Ok(id);
    }
    let roots: RootsView = ctx.client.ask(Request::RootList).await?;
    matching(&root, roots.items.iter().map(|root| root.id))
}

fn matching(prefix: &str, known: impl Iterator<Item = RootId>) -> Outcome<RootId> {
    let digits = prefix.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if !digits || !(MIN_ROOT_PREFIX..=16).contains(&prefix.len()) {
        let text =
            format!("invalid root {prefix:?}: expected {MIN_ROOT_PREFIX} to 16 digits of 0-9a-f (`muster ca ls`)");
        return Err(Failure::new(ErrorCode::Invalid, text));
    }
    let found: Vec<RootId> = known.filter(|id| id.to_string().starts_with(prefix)).collect();
    match found[..] {
        [one] => Ok(one),
        [] => Err(Failure::new(ErrorCode::NotFound, format!("no root {prefix:?}; `muster ca ls` lists them"))),
        [..] => {
            let ids = found.iter().map(RootId::to_string).collect::<Vec<_>>().join(", ");
            let text = format!("{prefix:?} matches {} roots: {ids}; give more digits", found.len());
            Err(Failure::new(ErrorCode::Invalid, text))
        }
    }
}

/// Takes one step. `sentence`: of the root's id, and whether something changed.
async fn change(ctx: &mut Context, request: Request, sentence: impl Fn(&str, bool) -> String) -> Outcome<u8> {
    let id = |done: &RootChangeView| done.root.map(|root| root.to_string()).unwrap_or_default();
    ctx.show(request, id, |done| sentence(&id(done), done.changed)).await
}

async fn rotate(ctx: &mut Context, args: RotateArgs) -> Outcome<u8> {
    let RotateArgs { prepare, compromised, wait, csr, issued } = args;
    if csr {
        return request(ctx, compromised).await;
    }
    let until = wait.map(|wait| Instant::now() + wait);
    let request = match &issued {
        Some(file) => Request::RootIssued { prepare, answer: answer_in(file)? },
        None => Request::RootRotate { prepare, compromised },
    };
    if compromised && matches!(ctx.client.target(), Target::Managers { .. }) {
        ctx.out.note(OWN_CERTIFICATE_ENDS);
    }
    warn_about_path_length(ctx, prepare).await?;
    let text = ctx.client.call(request).await?;
    let mut rotation = Rotation::read(&text, prepare, compromised)?;
    if let Some(until) = until {
        rotation.wait(ctx, until).await?;
    }
    rotation.print(ctx)
}

/// Prints the request, and nothing else, to standard output.
async fn request(ctx: &mut Context, compromised: bool) -> Outcome<u8> {
    let pem = |done: &RootChangeView| printable_lines(done.csr.as_deref().unwrap_or_default());
    let code = ctx.show(Request::RootRequest { compromised }, pem, pem).await?;
    ctx.out.note(SIGN_AS_AUTHORITY);
    Ok(code)
}

const SIGN_AS_AUTHORITY: &str = "have it signed as a certificate authority, with the subject kept and a path length of 0 to 4; then \
    `muster ca rotate --issued FILE` with that certificate and those above it";

/// The certificates in a file.
fn answer_in(file: &Path) -> Outcome<String> {
    let invalid = |why: String| Failure::new(ErrorCode::Invalid, format!("{}: {why}", file.display()));
    let mut answer = String::new();
    let opened = File::open(file).map_err(|why| invalid(why.to_string()))?;
    // A byte more than is accepted: the judgement of a longer file is the daemon's, and the same.
    let limit = u64::try_from(MAX_ANSWER).unwrap_or(u64::MAX).saturating_add(1);
    opened.take(limit).read_to_string(&mut answer).map_err(|why| invalid(why.to_string()))?;
    // It must not even reach the daemon.
    if answer.contains("PRIVATE KEY") {
        return Err(invalid(BadIssued::PrivateKey.to_string()));
    }
    Ok(answer)
}

/// Go programs heed the path length of a root that they trust: the next root, signed by it, is one authority too many.
async fn warn_about_path_length(ctx: &mut Context, prepare: bool) -> Outcome {
    let ca: CaView = ctx.client.ask(Request::CaShow).await?;
    // One that this client cannot read is the daemon's to judge.
    if muster_pki::path_length_of_pem(&ca.pem).is_ok_and(|length| length == Some(0)) {
        let next = match prepare {
            true => "hand out new kubeconfigs before `muster ca activate`",
            false => "`muster ca rotate --prepare`, new kubeconfigs, then `muster ca activate ID` avoid that",
        };
        ctx.out.note(format!(
            "warning: the root that signs now has path length 0: Go programs such as kubectl that know only this root refuse \
             certificates of the next one until they have a new kubeconfig; {next}"
        ));
    }
    Ok(())
}

const OWN_CERTIFICATE_ENDS: &str = "warning: the certificate of this identity ends when the earlier root is revoked; over the admin \
    socket of a manager no certificate is needed";

fn is_certified(root: &RootView) -> bool {
    root.origin == AuthorityOrigin::Upstream
}

/// A rotation that was begun, as it is printed.
struct Rotation {
    /// The answer, with fields of newer daemons; later the newest status.
    answer: Map<String, Value>,
    root: RootId,
    roots: RootsView,
    prepare: bool,
    compromised: bool,
    settled: bool,
}

impl Rotation {
    fn read(text: &str, prepare: bool, compromised: bool) -> Outcome<Self> {
        let RootChangeView { root, status, .. } = parse(text)?;
        let missing = || Failure::internal("unexpected answer from the daemon: it names no root");
        let (root, roots) = (root.ok_or_else(missing)?, status.ok_or_else(missing)?);
        // What a request to an authority above said counts for its answer.
        let leaked = roots.items.iter().any(|item| item.compromised && item.state != AuthorityState::Revoked);
        let compromised = compromised || leaked && roots.items.iter().any(|item| item.id == root && is_certified(item));
        Ok(Self { answer: parse(text)?, root, roots, prepare, compromised, settled: false })
    }

    async fn wait(&mut self, ctx: &mut Context, until: Instant) -> Outcome {
        let goal = match (self.prepare, self.compromised) {
            (true, _) => RotationGoal::Trusted,
            (false, false) => RotationGoal::Renewed,
            (false, true) => RotationGoal::Revoked,
        };
        let out = ctx.out;
        let text = ctx.client.wait_for_rotation(self.root, goal, until, |reason| out.note(reason)).await?;
        self.roots = parse(&text)?;
        self.answer.extend(parse::<Map<String, Value>>(&text)?);
        self.settled = true;
        Ok(())
    }

    fn print(mut self, ctx: &Context) -> Outcome<u8> {
        if self.settled {
            self.answer.insert("settled".to_owned(), true.into());
        }
        let text = serde_json::to_string(&self.answer).map_err(Failure::internal)?;
        ctx.out.document(&text, || self.root.to_string(), || self.sentences().join("\n"));
        Ok(0)
    }

    fn sentences(&self) -> Vec<String> {
        let root = self.root;
        let progress = if self.prepare { &self.roots.acknowledged } else { &self.roots.renewed };
        let (n, of) = (progress.n, progress.of);
        let mut said = vec![match (self.settled, self.prepare) {
            (false, false) => {
                format!("root {root} is published, and signs as soon as the nodes trust it: `muster ca status`")
            }
            (false, true) => {
                format!("root {root} is published; once the nodes trust it, run `muster ca activate {root}`")
            }
            (true, true) => {
                format!("root {root} is trusted by {n} of {of} nodes; `muster ca activate {root}` lets it sign")
            }
            (true, false) => format!("root {root} signs; {n} of {of} nodes have certificates of it"),
        }];
        if self.settled {
            said.extend(progress.missing.iter().map(|node| {
                let then =
                    if node.reason == RootsWaitReason::WaitingForNode { self.on_return() } else { String::new() };
                format!("{}: {}{then}", node.name, word(node.reason))
            }));
        }
        let users = self.roots.users_outdated;
        if self.settled && users > 0 {
            said.push(format!("users with a certificate of another root: {users}; `muster user ls` names them, `muster user renew` replaces one"));
        }
        match (self.compromised, self.settled && !self.prepare) {
            (true, done) => said.extend(self.after_a_leak(done)),
            (false, true) => {
                said.push("join tokens stay valid; `muster token rotate ROLE` replaces a default one".to_owned());
            }
            (false, false) => {}
        }
        said
    }

    /// What becomes of a node that is down.
    fn on_return(&self) -> String {
        match self.compromised && !self.prepare {
            false => ": it follows when it returns".to_owned(),
            true => format!(
                ": it follows when it returns; if it was down before root {} was published, it needs a join token",
                self.root
            ),
        }
    }

    /// `done`: the earlier roots are revoked.
    fn after_a_leak(&self, done: bool) -> [String; 2] {
        let ended = match done {
            true => {
                "the earlier roots are revoked, and the default join tokens were replaced; `muster token ls` shows the others"
            }
            false => {
                "when it signs, the default join tokens are replaced; once enough managers have renewed, the earlier roots are \
                 revoked, and certificates of users that they signed end"
            }
        };
        [
            ended.to_owned(),
            "old backups and copies of managers' disks hold the earlier root's key: destroy them".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::RootsMissingView;
    use serde_json::json;

    fn id(text: &str) -> RootId {
        text.parse().unwrap()
    }

    #[test]
    fn unique_beginning_of_an_id_names_a_root() {
        let known = ["4be3c1d20f6a9587", "4be3c1d2ffffffff", "0123456789abcdef"].map(id);
        let find = |prefix: &str| matching(prefix, known.into_iter());
        assert_eq!(find("0123").unwrap(), known[2]);
        assert_eq!(find("4be3c1d20").unwrap(), known[0]);
        let several = find("4be3c1d2").unwrap_err();
        assert!(several.exit == 2 && several.message.contains("4be3c1d2ffffffff"), "{several}");
        assert_eq!(find("9999").unwrap_err().exit, 4);
        for bad in ["", "012", "0123456789abcdef0", "ABCD", "n1.x"] {
            assert_eq!(find(bad).unwrap_err().exit, 2, "{bad}");
        }
    }

    fn rotation(prepare: bool, compromised: bool) -> Rotation {
        let root = |id: &str, state: &str| {
            json!({"id": id, "state": state, "origin": "made", "digest": "d", "not_after": "2044-01-01T00:00:00Z",
                "created_at": "2024-01-01T00:00:00Z", "activated_at": null, "issued": 0, "outdated": 0})
        };
        let missing = json!([{"node": "0000000000000000000000001", "name": "n5", "reason": "waiting_for_node"}]);
        let progress = json!({"of": 5, "n": 4, "missing": missing});
        let answer = json!({"root": "0123456789abcdef", "changed": true, "revision": 9, "newer": 1,
            "items": [root("0123456789abcdef", "prepared")], "active": "4be3c1d20f6a9587", "target": "0123456789abcdef",
            "phase": "publishing", "acknowledged": progress, "renewed": progress, "users_outdated": 2, "last_not_after": null});
        Rotation::read(&answer.to_string(), prepare, compromised).unwrap()
    }

    #[test]
    fn rotation_says_what_is_left_to_do() {
        let begun = rotation(false, false).sentences();
        assert_eq!(
            begun,
            ["root 0123456789abcdef is published, and signs as soon as the nodes trust it: `muster ca status`"]
        );
        let mut waited = rotation(false, false);
        waited.settled = true;
        assert_eq!(
            waited.sentences(),
            [
                "root 0123456789abcdef signs; 4 of 5 nodes have certificates of it",
                "n5: waiting_for_node: it follows when it returns",
                "users with a certificate of another root: 2; `muster user ls` names them, `muster user renew` replaces one",
                "join tokens stay valid; `muster token rotate ROLE` replaces a default one",
            ]
        );
        let prepared = rotation(true, false).sentences();
        assert!(prepared.len() == 1 && prepared[0].contains("muster ca activate 0123456789abcdef"), "{prepared:?}");
    }

    #[test]
    fn compromised_rotation_says_what_ends() {
        let mut rotation = rotation(false, true);
        let begun = rotation.sentences().join("\n");
        assert!(begun.contains("tokens are replaced") && begun.contains("users that they signed end"), "{begun}");
        assert!(begun.contains("backups") && begun.contains("destroy"), "{begun}");
        rotation.settled = true;
        let missing = &mut rotation.roots.renewed.missing;
        missing.push(RootsMissingView {
            reason: RootsWaitReason::Renewing,
            name: "n4".parse().unwrap(),
            ..missing[0].clone()
        });
        let done = rotation.sentences();
        assert!(done[1].starts_with("n5: waiting_for_node") && done[1].ends_with("it needs a join token"), "{done:?}");
        assert_eq!(done[2], "n4: renewing");
        assert!(done[4].contains("earlier roots are revoked") && done[4].contains("tokens were replaced"), "{done:?}");
    }

    #[test]
    fn fields_of_newer_daemons_stay_in_json() {
        assert_eq!(rotation(false, false).answer["newer"], 1);
        let without_root = json!({"root": null, "changed": false, "revision": 9}).to_string();
        assert!(Rotation::read(&without_root, false, false).is_err());
    }
}
