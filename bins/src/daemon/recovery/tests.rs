//! A recovery that is interrupted, on a real disk.

use std::path::PathBuf;

use muster_messages::{
    ClusterId, ClusterRecord, FEATURE_LEVEL, FIRST_INCARNATION, Name, NodeRecord, Revision, Role, Secret,
};
use muster_pki::Root;
use muster_store::apply;

use super::*;
use crate::daemon::config::{Args, load};

const AT: WallTime = WallTime(1_700_000_000_000);
const ADVERTISE: &str = "10.0.0.9:4400";

struct Machine {
    _folder: tempfile::TempDir,
    config: Config,
    memory: NodeMemory,
    node: NodeId,
}

impl Machine {
    /// A stopped manager, one of two.
    fn manager() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args = ["musterd", "--name", "n1", "--force-new-cluster", "--data-dir"];
        let args = Args::of(args.iter().map(|a| (*a).to_owned()).chain([folder.path().display().to_string()]));
        let config = load(args.unwrap()).unwrap();
        let store = IdentityStore::open(folder.path()).unwrap();
        let memory = NodeMemory::new(store);
        let node = NodeId::from_entropy(1);
        let machine = Self { _folder: folder, config, memory, node };
        let tables = machine.two_managers();
        let cluster = tables.cluster.clone().unwrap();
        let made =
            Recovering::decide(&cluster, node, tables.nodes[&node].granted, ADVERTISE, muster_pki::NODE_LIFETIME, AT);
        machine.memory.store().save_credentials(&made.unwrap().credentials().unwrap()).unwrap();
        machine.memory.update(|node| node.managers = vec!["10.0.0.2:4400".to_owned()]).unwrap();
        replace(&machine.raft(), machine.memory.store().keys(), RaftId(1), 7, tables).unwrap();
        machine
    }

    fn two_managers(&self) -> Tables {
        let id = ClusterId::from_entropy(7);
        let root = Root::create(id, AT).unwrap();
        let cluster = ClusterRecord {
            id,
            name: Name::sanitized("default"),
            incarnation: FIRST_INCARNATION,
            feature_level: FEATURE_LEVEL,
            root_cert_pem: root.cert_pem,
            root_key_pem: root.key_pem,
            founded_at: AT,
            revision: Revision(0),
        };
        let node = |n| NodeRecord {
            // Port 9 of an unassigned network: refused or silent, never an answer.
            addr: "127.0.0.1:9".to_owned(),
            ..NodeRecord::new(NodeId::from_entropy(n), Name::sanitized(&format!("n{n}")), Role::Manager, AT)
        };
        let found = Change::Found { cluster: Box::new(cluster), founder: Box::new(node(1)), tokens: vec![] };
        let command = Command::idempotent(AT, Principal::Operator, "a test");
        let mut tables = Tables { revision: Revision(1), ..Tables::default() };
        for (revision, change) in (2..).zip([found, Change::CreateNode(Box::new(node(2)))]) {
            apply(&mut tables, Revision(revision), &command.clone().change(change)).unwrap();
        }
        let other = muster_messages::Member { node: node(2).id, raft_id: RaftId(2), addr: node(2).addr, voter: true };
        tables.members.insert(other.raft_id, other);
        tables.next_raft_id = RaftId(3);
        tables
    }

    fn raft(&self) -> PathBuf {
        self.config.data_dir.join("raft")
    }

    /// A recovery that was decided and recorded, with nothing done: what the earliest crash leaves behind.
    fn begin(&self) -> Recovering {
        let survey = survey_of(&self.raft(), self.memory.store()).unwrap();
        let decided = force(&self.config, ADVERTISE, self.memory.store(), &survey).unwrap().unwrap();
        self.memory.store().begin_recovery(&decided).unwrap();
        decided
    }

    /// The next start, with the flag or without.
    fn starts(&mut self, forced: bool) {
        self.config.force_new_cluster = forced;
        settle(&self.config, ADVERTISE, &self.memory).unwrap();
    }

    #[track_caller]
    fn has_recovered(&self, decided: &Recovering) {
        let survey = survey_of(&self.raft(), self.memory.store()).unwrap();
        let (cluster, member_count) = (survey.tables.cluster.clone().unwrap(), survey.tables.members.len());
        assert_eq!((cluster.incarnation, member_count), (decided.incarnation, 1));
        let credentials = self.memory.store().load_credentials().unwrap().unwrap();
        assert_eq!(credentials.cert_pem, decided.cert_pem);
        assert_eq!(survey.tables.nodes[&self.node].certificate, Some(decided.certificate.clone()));
        let local = self.memory.load().unwrap();
        assert_eq!((local.held_member_id, local.managers), (Some(survey.member_id), vec![]));
        assert_eq!(self.memory.store().load_recovery().unwrap(), None);
        muster_store::invariants::check(&survey.tables).unwrap();
    }
}

#[test]
fn interrupted_recovery_is_finished_as_decided() {
    for forced in [false, true] {
        let mut before_anything = Machine::manager();
        let decided = before_anything.begin();
        before_anything.starts(forced);
        before_anything.has_recovered(&decided);

        let mut after_the_log = Machine::manager();
        let decided = after_the_log.begin();
        let survey = survey_of(&after_the_log.raft(), after_the_log.memory.store()).unwrap();
        let (tables, done) = recovered(survey.tables, &decided).unwrap();
        replace(&after_the_log.raft(), after_the_log.memory.store().keys(), done.raft_id, survey.term + 1, tables)
            .unwrap();
        after_the_log.starts(forced);
        after_the_log.has_recovered(&decided);

        let mut before_the_end = Machine::manager();
        let decided = before_the_end.begin();
        finish(&before_the_end.config, &before_the_end.memory, &decided).unwrap();
        before_the_end.memory.store().begin_recovery(&decided).unwrap();
        before_the_end.starts(forced);
        before_the_end.has_recovered(&decided);
    }
}

#[test]
fn the_only_manager_has_nothing_to_recover() {
    let mut machine = Machine::manager();
    machine.starts(true);
    let once = survey_of(&machine.raft(), machine.memory.store()).unwrap().tables;
    machine.starts(true);
    assert_eq!(survey_of(&machine.raft(), machine.memory.store()).unwrap().tables, once, "a flag left in a unit file");
}

#[test]
fn unusable_data_is_reported_and_kept() {
    let refusal = |machine: &Machine| settle(&machine.config, ADVERTISE, &machine.memory).unwrap_err();
    let machine = Machine::manager();
    std::fs::remove_dir_all(machine.raft()).unwrap();
    let no_data = refusal(&machine);
    assert!(no_data.status == 6 && no_data.sentence.contains("holds no manager's data"), "{no_data:?}");

    let machine = Machine::manager();
    let snapshots = std::fs::read_dir(machine.raft()).unwrap().map(|entry| entry.unwrap().path());
    let snapshot = snapshots.filter(|path| path.to_string_lossy().contains("snapshot-")).max().unwrap();
    std::fs::write(&snapshot, "rotten").unwrap();
    let damaged = refusal(&machine);
    assert!(damaged.status == 6 && damaged.sentence.contains(&snapshot.display().to_string()), "{damaged:?}");
    assert_eq!(machine.memory.store().load_recovery().unwrap(), None);
}

/// An empty directory, and a backup of the cluster that [`Machine::manager`] belongs to.
fn restoring(cluster: &Machine) -> (Machine, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    let survey = survey_of(&cluster.raft(), cluster.memory.store()).unwrap();
    std::fs::write(&file, muster_store::backup::encode(&survey.tables, muster_messages::Term(7), AT).unwrap()).unwrap();
    let dir = folder.path().join("new");
    let args = ["musterd", "--name", "n9", "--restore"].map(str::to_owned).into_iter();
    let args = args.chain([&file, &PathBuf::from("--data-dir"), &dir].map(|path| path.display().to_string()));
    let config = load(Args::of(args).unwrap()).unwrap();
    let memory = NodeMemory::new(IdentityStore::open(&dir).unwrap());
    (Machine { _folder: folder, config, memory, node: NodeId::from_entropy(1) }, file)
}

#[test]
fn interrupted_restore_needs_its_file_to_finish() {
    let cluster = Machine::manager();
    let (mut machine, file) = restoring(&cluster);
    let decided = restore::decide(&machine.config, ADVERTISE, &machine.memory, &file).unwrap();
    machine.memory.store().begin_recovery(&decided).unwrap();
    let given = machine.config.restore.take();
    let without = settle(&machine.config, ADVERTISE, &machine.memory).unwrap_err();
    assert!(without.status == 6 && without.sentence.contains("--restore and the same file"), "{without:?}");
    machine.config.restore = given;
    machine.node = decided.node;
    machine.starts(false);
    machine.has_recovered(&decided);
    let tables = survey_of(&machine.raft(), machine.memory.store()).unwrap().tables;
    assert_eq!(tables.nodes[&machine.node].name.as_str(), "n9");
    assert_eq!(tables.managers().count(), 1);
    // Its log exists: the file is no longer needed.
    machine.memory.store().begin_recovery(&decided).unwrap();
    machine.config.restore = None;
    machine.starts(false);
    machine.has_recovered(&decided);
}

#[test]
fn restore_needs_an_empty_directory_and_an_intact_file() {
    let cluster = Machine::manager();
    let (machine, file) = restoring(&cluster);
    let mut used = Machine::manager();
    used.config.restore = Some(file.clone());
    let refused = settle(&used.config, ADVERTISE, &used.memory).unwrap_err();
    assert!(refused.status == 6 && refused.sentence.contains("needs an empty directory"), "{refused:?}");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let damaged = settle(&machine.config, ADVERTISE, &machine.memory).unwrap_err();
    assert!(damaged.status == 6 && damaged.sentence.contains("digest does not match"), "{damaged:?}");
    assert!(machine.memory.store().load_credentials().unwrap().is_none());
}

/// A backup that is sealed opens with the key of `--unlock-key-file`, as a locked manager does.
#[test]
fn sealed_backup_is_restored_with_its_key() {
    let cluster = Machine::manager();
    let (mut machine, file) = restoring(&cluster);
    let mut tables = survey_of(&cluster.raft(), cluster.memory.store()).unwrap().tables;
    let (key, other) = (muster_sealing::UnlockKey::new(), muster_sealing::UnlockKey::new());
    tables.autolock.key = Some(muster_messages::Secret::new(key.to_text().as_str()));
    tables.autolock.version = muster_messages::Revision(3);
    let sealed = muster_store::backup::encode_for_file(&tables, muster_messages::Term(7), AT).unwrap();
    std::fs::write(&file, &sealed).unwrap();
    let refusal = |machine: &Machine| settle(&machine.config, ADVERTISE, &machine.memory).unwrap_err();
    let without = refusal(&machine);
    assert!(without.status == 6 && without.sentence.contains("version 3"), "{without:?}");
    let key_file = file.with_extension("key");
    machine.config.unlock_key_file = Some(key_file.clone());
    std::fs::write(&key_file, other.to_text().as_bytes()).unwrap();
    let wrong = refusal(&machine);
    assert!(wrong.status == 6 && wrong.sentence.contains("not the one"), "{wrong:?}");
    std::fs::write(&key_file, key.to_text().as_bytes()).unwrap();
    let mut rotten = sealed.clone();
    *rotten.last_mut().unwrap() ^= 1;
    std::fs::write(&file, rotten).unwrap();
    let damaged = refusal(&machine);
    assert!(damaged.status == 6 && damaged.sentence.contains("digest does not match"), "{damaged:?}");
    std::fs::write(&file, sealed).unwrap();
    let decided = restore::decide(&machine.config, ADVERTISE, &machine.memory, &file).unwrap();
    assert_eq!(decided.root_pem, tables.cluster.as_ref().unwrap().root_cert_pem);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decided = runtime.block_on(async { restore::decide(&machine.config, ADVERTISE, &machine.memory, &file) });
    assert!(decided.is_ok(), "within the daemon's runtime");
}

/// Otherwise who can replace the file replaces a sealed one by their own.
#[test]
fn clear_backup_is_refused_where_a_key_is_given() {
    let cluster = Machine::manager();
    let (mut machine, file) = restoring(&cluster);
    let restored = |machine: &Machine| restore::decide(&machine.config, ADVERTISE, &machine.memory, &file);
    machine.config.unlock_key_file = Some(file.with_extension("key"));
    let refused = restored(&machine).unwrap_err();
    assert!(refused.status == 6 && refused.sentence.contains("is not sealed"), "{refused:?}");
    assert!(refused.sentence.contains("leave out --unlock-key-file"), "{refused:?}");
    machine.config.unlock_key_file = None;
    machine.config.settings.unlock.command = vec!["/bin/key".to_owned(), "secret".to_owned()];
    let refused = restored(&machine).unwrap_err();
    assert!(refused.sentence.contains("command /bin/key)") && !refused.sentence.contains("secret"), "{refused:?}");
    machine.config.settings.unlock.command.clear();
    restored(&machine).unwrap();
}

/// The node fetched its certificate and crashed before its manager runtime had stopped.
#[test]
fn data_older_than_the_certificate_is_set_aside_at_start() {
    use crate::daemon::boot::raft_data;
    use muster_manager::RaftData;
    let machine = Machine::manager();
    machine.memory.update(|node| node.held_member_id = Some(RaftId(1))).unwrap();
    let found = |credentials| raft_data(&machine.config, &machine.memory, &credentials, false).unwrap().0;
    let old = machine.memory.store().load_credentials().unwrap().unwrap();
    assert_eq!(found(old.clone()), RaftData::Present);
    let mut new = old;
    new.identity.incarnation = new.identity.incarnation.next();
    assert_eq!(found(new), RaftData::None, "not a loss: no member is to wait for that id");
    assert_eq!(machine.memory.load().unwrap().held_member_id, None);
    let set_aside_survey = survey_of(&machine.config.data_dir.join(FENCED), machine.memory.store()).unwrap();
    assert_eq!(set_aside_survey.member_id, RaftId(1), "it may be the better data");
}

#[test]
fn expired_manager_signs_only_for_itself() {
    let machine = Machine::manager();
    let expired = machine.memory.store().load_credentials().unwrap().unwrap();
    let sign = |machine: &Machine| self_sign(&machine.config, ADVERTISE, &machine.memory, &expired).unwrap();
    let made = sign(&machine).unwrap();
    assert!(expired.identity.not_after < made.identity.not_after && made.identity.not_after > Clock.wall());
    assert_eq!((made.identity.granted, made.identity.incarnation), (None, expired.identity.incarnation));
    assert_eq!(made.identity.node(), expired.identity.node());
    let kept = machine.memory.store().load_credentials().unwrap().unwrap();
    assert_eq!(kept.cert_pem, made.cert_pem);

    let Survey { tables, .. } = survey_of(&machine.raft(), machine.memory.store()).unwrap();
    let mut demoted = tables.clone();
    let record = (*tables.nodes[&machine.node]).clone();
    demoted.nodes.insert(machine.node, std::sync::Arc::new(NodeRecord { role: Role::Worker, ..record }));
    let mut not_member = tables.clone();
    not_member.members.remove(&RaftId(1));
    let mut recovered = tables;
    let cluster = (*recovered.cluster.clone().unwrap()).clone();
    let cluster = ClusterRecord { incarnation: cluster.incarnation.next(), ..cluster };
    recovered.cluster = Some(std::sync::Arc::new(cluster));
    for (why, tables) in [("demoted", demoted), ("not a member", not_member), ("recovered", recovered)] {
        replace(&machine.raft(), machine.memory.store().keys(), RaftId(1), 9, tables).unwrap();
        assert!(sign(&machine).is_none(), "{why}");
    }
    std::fs::remove_dir_all(machine.raft()).unwrap();
    assert!(sign(&machine).is_none(), "without data it needs a token, as a worker does");
}

/// The recovery's secrets are in one file that only its owner may read.
#[test]
fn decided_recovery_is_private_and_hides_its_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let machine = Machine::manager();
    let decided = machine.begin();
    let file = machine.config.data_dir.join("identity").join("recovery.json");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!format!("{decided:?}").contains("PRIVATE KEY"));
    assert_ne!(decided.key_pem, Secret::new(""));
}

/// F13. A load balancer accepts connections for managers that are gone; so does another node at a reused address.
#[test]
fn only_a_manager_that_proves_its_identity_counts() {
    let machine = Machine::manager();
    let tables = survey_of(&machine.raft(), machine.memory.store()).unwrap().tables;
    let cluster = tables.cluster.clone().unwrap();
    let other = NodeId::from_entropy(2);
    let answers_as = |serves: Option<NodeId>| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let lifetime = muster_pki::NODE_LIFETIME;
        let config = serves.map(|node| {
            let key = muster_pki::new_key();
            let now = (Clock.wall(), &key);
            let signed = muster_pki::sign_for_itself(&cluster, node, None, ADVERTISE, lifetime, now).unwrap();
            let made = muster_pki::credentials(key, signed.cert_pem, cluster.root_cert_pem.clone()).unwrap();
            muster_pki::server_config(&made, Service::Join.alpn()).unwrap()
        });
        std::thread::spawn(move || {
            let (mut tcp, _) = listener.accept().unwrap();
            let Some(config) = config else { return };
            let mut tls = rustls::ServerConnection::new(config).unwrap();
            // Only to the end of the handshake; the greeting never comes.
            while tls.is_handshaking() {
                if tls.complete_io(&mut tcp).is_err() {
                    return;
                }
            }
        });
        answers(other, &addr, &cluster.root_cert_pem)
    };
    assert!(answers_as(Some(other)), "it counts, whatever follows the handshake");
    assert!(!answers_as(None), "a connection alone does not count");
    assert!(!answers_as(Some(NodeId::from_entropy(3))), "another node does not count");
}

/// RECOVER-8. Data that nobody could read is not known to be recent.
#[test]
fn unreadable_data_is_not_taken_for_current() {
    let fault = |kind| disk::LogFault { file: "raft".into(), why: "in use".to_owned(), kind };
    let present = |incarnation| disk::DirState::Present { raft_id: RaftId(1), incarnation };
    let outlived = |found| is_outlived(&found, Incarnation(2));
    assert_eq!(outlived(present(Some(Incarnation(1)))), Ok(true));
    for current in [present(Some(Incarnation(2))), present(None), disk::DirState::Absent] {
        assert_eq!(outlived(current.clone()), Ok(false), "{current:?}");
    }
    let unreadable = fault(disk::FaultKind::Io);
    assert_eq!(outlived(disk::DirState::Unreadable(unreadable.clone())), Err(unreadable));
}
