//! A cluster of one: the core, a log that applies its proposals, a real root, and ports that keep the answers.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_cert_authority::Config;
use muster_cert_authority::core::*;
use muster_messages::protocol::{ProposeError, UserCertificate, UserRights};
use muster_messages::wire::{JoinReply, SignReply};
use muster_messages::*;
use muster_pki::*;

pub const HOUR: Duration = Duration::from_secs(3600);
pub const NOW: WallTime = WallTime(1_800_000_000_000);
pub const WORKER: &str = "wwwwwwwwwwwwwwwwwwwwwwwww";
pub const MANAGER: &str = "mmmmmmmmmmmmmmmmmmmmmmmmm";

pub type Outcome = Result<Answer, ErrorBody>;

pub struct World {
    pub core: CertAuthority,
    /// The state that every member has applied.
    pub log: Tables,
    pub now: Moment,
    pub wall: WallTime,
    pub answers: BTreeMap<AskId, Outcome>,
    /// Every profile that was ever signed.
    pub signed: Vec<Profile>,
    /// While set, proposals wait in `proposals`.
    pub hold: bool,
    pub proposals: VecDeque<(StepId, Command)>,
    /// The root of each signature for a workload.
    pub issuers: Vec<RootId>,
    /// While set, linearizable reads wait in `reads`.
    pub hold_reads: bool,
    pub reads: VecDeque<StepId>,
    /// While set, the core's replica does not change.
    pub blind: bool,
    pub alarm: Option<Moment>,
    pub signer_fails: bool,
    /// How often it requested the other managers' time.
    pub compares: usize,
    pub issuer: Issuer,
    last: u64,
}

pub fn id(n: u128) -> NodeId {
    NodeId::from_entropy(n)
}

pub fn key() -> CsrKey {
    CsrKey::parse(&make_csr(&new_key()).unwrap()).unwrap()
}

pub fn token(id: &str, role: Role, secret: &str) -> Token {
    Token {
        id: id.to_owned(),
        role,
        secret: Secret::new(secret),
        default: false,
        created_at: NOW,
        expires_at: None,
        uses_left: None,
        revision: Revision(0),
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        Self::founded(config, FEATURE_LEVEL)
    }

    /// In a cluster of this feature level.
    pub fn at_level(level: u32) -> Self {
        Self::founded(Config::default(), level)
    }

    fn founded(config: Config, feature_level: u32) -> Self {
        let cluster = ClusterId::from_entropy(1);
        let root = Root::create(cluster, NOW).unwrap();
        let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
        let mut world = Self {
            core: CertAuthority::new(config),
            log: Tables::default(),
            now: Moment(0),
            wall: NOW,
            answers: BTreeMap::new(),
            signed: Vec::new(),
            hold: false,
            proposals: VecDeque::new(),
            issuers: Vec::new(),
            hold_reads: false,
            reads: VecDeque::new(),
            blind: false,
            alarm: None,
            signer_fails: false,
            compares: 0,
            issuer,
            last: 0,
        };
        let record = ClusterRecord {
            id: cluster,
            name: "default".parse().unwrap(),
            incarnation: Incarnation(1),
            feature_level,
            root_cert_pem: root.cert_pem,
            root_key_pem: root.key_pem,
            founded_at: NOW,
            revision: Revision(0),
        };
        world.change(Change::Found {
            cluster: Box::new(record),
            founder: Box::new(node_record(id(1), "n1", Role::Manager)),
            tokens: vec![token("w", Role::Worker, WORKER), token("m", Role::Manager, MANAGER)],
        });
        world
    }

    /// An entry of another proposer.
    pub fn change(&mut self, change: Change) {
        let command = Command::idempotent(self.wall, Principal::Operator, "test").change(change);
        self.apply(&command).unwrap();
        self.show();
    }

    pub fn add(&mut self, n: u128, role: Role) {
        let name = format!("n{n}");
        self.change(Change::CreateNode(Box::new(node_record(id(n), &name, role))));
        if self.log.records_identities() {
            self.issue(n, &format!("first of n{n}"));
        }
    }

    /// Records a certificate with this serial; the previous one stays beside it.
    pub fn issue(&mut self, n: u128, serial: &str) {
        let record = self.node(n);
        let certificate = Box::new(IssuedCertificate {
            serial: serial.to_owned(),
            role: record.role,
            granted: Some(record.granted),
            not_after: NOW.plus(HOUR),
            pin: None,
            issuer: None,
        });
        let replaces = self.newest(n).map(|newest| newest.serial.clone());
        self.change(Change::IssueCertificate { node: id(n), certificate, held: None, replaces });
    }

    /// The newest certificate on record.
    pub fn newest(&self, n: u128) -> Option<&IssuedCertificate> {
        self.log.certificates.get(&id(n))?.current.as_ref()
    }

    pub fn remove(&mut self, n: u128) {
        let block = Blocked { node: id(n), by: Principal::Operator, blocked_at: self.wall, expires_at: self.wall };
        let command = Command::idempotent(self.wall, Principal::Operator, "removed")
            .change(Change::DeleteNode(id(n)))
            .change(Change::Block(block));
        self.apply(&command).unwrap();
        self.show();
    }

    pub fn apply(&mut self, command: &Command) -> Result<Revision, CommandRefusal> {
        let at = self.log.revision.next();
        muster_store::apply(&mut self.log, at, command).map(|()| at)
    }

    /// Passes the applied state to the core, unless it is blind.
    pub fn show(&mut self) {
        if !self.blind {
            self.input(Input::Replica(self.log.clone()));
        }
    }

    pub fn input(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.core.step(self.now, self.wall, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Sign { step, profile, key } => {
                    let signed = match (&profile, self.signer_fails) {
                        (_, true) => Err(SignError::Key),
                        (Profile::Node(p), _) => self.issuer.sign_node(p, &key),
                        (Profile::User(p), _) => self.issuer.sign_user(p, &key),
                    };
                    self.signed.push(profile);
                    self.input(Input::Signed(step, signed));
                }
                Effect::SignWorkload(step, work) => {
                    let signed = match work {
                        WorkloadWork::Certificate(profile, key) => {
                            let signed = self.issuer.sign_workload(&profile, &key).unwrap();
                            self.issuers.push(signed.issuer);
                            WorkloadSigned::Certificate(signed)
                        }
                        WorkloadWork::Jwt(profile) => {
                            let signed = self.issuer.sign_jwt(&profile).unwrap();
                            self.issuers.push(signed.issuer);
                            WorkloadSigned::Jwt(signed)
                        }
                    };
                    self.input(Input::SignedWorkload(step, Ok(signed)));
                }
                Effect::Propose { step, command } => {
                    self.proposals.push_back((step, command));
                    if !self.hold {
                        self.settle();
                    }
                }
                Effect::Confirm(step) => {
                    self.reads.push_back(step);
                    if !self.hold_reads {
                        self.read(Ok(()));
                    }
                }
                Effect::CompareClocks => self.compares += 1,
                Effect::ClockNews(_) => {}
                Effect::CatchUp(_) => self.show(),
                Effect::Answer(ask, answer) => {
                    assert!(self.answers.insert(ask, answer).is_none(), "answered once");
                }
                Effect::WakeAt(at) => self.alarm = Some(at),
            }
        }
    }

    /// The oldest waiting read ends: with the applied state, which the core may not have seen, or with an error.
    pub fn read(&mut self, result: Result<(), ErrorBody>) {
        let step = self.reads.pop_front().unwrap();
        let tables = result.map(|()| Box::new(self.log.clone()));
        self.input(Input::Confirmed(step, tables));
    }

    /// Applies all waiting proposals.
    pub fn settle(&mut self) {
        while !self.proposals.is_empty() {
            self.settle_one();
        }
    }

    /// Applies the oldest waiting proposal.
    pub fn settle_one(&mut self) {
        if let Some((step, command)) = self.proposals.pop_front() {
            let result = self.apply(&command).map_err(ProposeError::Refused);
            self.show();
            self.input(Input::Proposed(step, result));
        }
    }

    /// The oldest waiting proposal ends like this, without being applied.
    pub fn fail(&mut self, why: ProposeError) {
        let (step, _) = self.proposals.pop_front().unwrap();
        self.input(Input::Proposed(step, Err(why)));
    }

    pub fn ask(&mut self, cert_request: CertificateRequest) -> AskId {
        self.last += 1;
        self.input(Input::Asked(AskId(self.last), cert_request));
        AskId(self.last)
    }

    pub fn answer(&self, ask: AskId) -> Option<&Outcome> {
        self.answers.get(&ask)
    }

    pub fn node(&self, n: u128) -> &NodeRecord {
        &self.log.nodes[&id(n)]
    }

    pub fn renewal(&self, n: u128) -> CertificateRequest {
        let (role, granted) = self.log.nodes.get(&id(n)).map_or((Role::Worker, Revision(1)), |r| (r.role, r.granted));
        let serial = self.newest(n).map_or_else(|| "00".to_owned(), |newest| newest.serial.clone());
        CertificateRequest::Node(NodeRequest {
            identity: CertIdentity { granted: Some(granted), ..presented(n, role, &serial) },
            observed: Some("10.0.0.7:41000".parse().unwrap()),
            key: key(),
        })
    }

    pub fn renew(&mut self, n: u128) -> Outcome {
        let cert_request = self.renewal(n);
        let ask = self.ask(cert_request);
        self.answers[&ask].clone()
    }

    pub fn join(&mut self, cert_request: VerifiedJoin) -> Outcome {
        let ask = self.ask(CertificateRequest::Join(Box::new(cert_request)));
        self.answers[&ask].clone()
    }

    pub fn user(&mut self, cert_request: UserRequest) -> Outcome {
        let ask = self.ask(CertificateRequest::User(cert_request));
        self.answers[&ask].clone()
    }
}

impl World {
    /// Writes the entry of a workload.
    pub fn set_workload(&mut self, entry: WorkloadEntry) {
        self.change(Change::Workload(Box::new(WorkloadChange::Set(entry))));
    }

    /// Node `n` asks for a workload, with its newest certificate.
    pub fn workload(&mut self, n: u128, workload: &str) -> Outcome {
        let (role, serial) =
            (Role::Worker, self.newest(n).map_or_else(|| "00".to_owned(), |newest| newest.serial.clone()));
        self.workload_as(presented(n, role, &serial), workload)
    }

    /// Node `n` asks for a JWT of a workload, with its newest certificate.
    pub fn jwt(&mut self, n: u128, workload: &str) -> Outcome {
        let serial = self.newest(n).map_or_else(|| "00".to_owned(), |newest| newest.serial.clone());
        let ask = self.ask(jwt_request(presented(n, Role::Worker, &serial), workload));
        self.answers[&ask].clone()
    }

    pub fn workload_as(&mut self, identity: CertIdentity, workload: &str) -> Outcome {
        let ask = self.ask(workload_request(identity, workload));
        self.answers[&ask].clone()
    }
}

pub fn workload_request(identity: CertIdentity, workload: &str) -> CertificateRequest {
    let wanted = Wanted::Certificate(PublicKey::parse(key().spki()).unwrap());
    CertificateRequest::Workload(WorkloadRequest { identity, workload: workload.parse().unwrap(), wanted })
}

pub fn jwt_request(identity: CertIdentity, workload: &str) -> CertificateRequest {
    let wanted = Wanted::Jwt(vec!["spiffe://x/db".to_owned()]);
    CertificateRequest::Workload(WorkloadRequest { identity, workload: workload.parse().unwrap(), wanted })
}

/// A certificate that a node presents.
pub fn presented(n: u128, role: Role, serial: &str) -> CertIdentity {
    CertIdentity {
        cluster: ClusterId::from_entropy(1),
        subject: Subject::Node { node: id(n), role },
        serial: serial.to_owned(),
        granted: None,
        incarnation: Incarnation(1),
        not_after: NOW.plus(HOUR),
        pin: None,
        issuer: None,
    }
}

/// The proof of a node that re-keys: it holds the key of this certificate.
pub fn proof(n: u128, serial: &str) -> Option<Box<CertIdentity>> {
    Some(Box::new(presented(n, Role::Manager, serial)))
}

pub fn node_record(id: NodeId, name: &str, role: Role) -> NodeRecord {
    NodeRecord {
        addr: format!("{name}.example:4400"),
        release: "0.1.0".to_owned(),
        ..NodeRecord::new(id, name.parse().unwrap(), role, NOW)
    }
}

pub fn joiner(n: u128, secret: &str) -> VerifiedJoin {
    VerifiedJoin {
        request: RequestId(n),
        node: id(n),
        secret: Secret::new(secret),
        name: format!("n{n}").parse().unwrap(),
        addr: "10.0.0.9:4400".to_owned(),
        release: "0.1.0".to_owned(),
        labels: BTreeMap::new(),
        observed: Some("10.0.0.9:50000".parse().unwrap()),
        key: key(),
        rekey: None,
    }
}

pub fn ada(request: u128) -> UserRequest {
    UserRequest {
        name: "ada".parse().unwrap(),
        rights: UserRights::New { kind: UserKind::Operator, namespaces: vec![] },
        lifetime: None,
        by: Principal::Operator,
        request: RequestId(request),
        key: key(),
    }
}

pub fn code(outcome: &Outcome) -> ErrorCode {
    outcome.as_ref().unwrap_err().code
}

/// The certificate in an answer.
pub fn certificate(outcome: &Outcome) -> CertIdentity {
    let pem = match outcome.as_ref().unwrap() {
        Answer::Signed(SignReply { cert_pem, .. })
        | Answer::Joined(JoinReply::Joined { cert_pem, .. })
        | Answer::User(UserCertificate { cert_pem, .. }) => cert_pem,
        other => panic!("no certificate in {other:?}"),
    };
    identity_of_pem(pem).unwrap()
}

/// A certificate's role, and since when it was granted.
pub fn grant(outcome: &Outcome) -> (Role, Option<Revision>) {
    let identity = certificate(outcome);
    (identity.node().unwrap().1, identity.granted)
}
