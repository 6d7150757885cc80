use super::*;

fn settings(text: &str) -> Result<Settings, String> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Some {
        debug: Debug,
        supervision: Supervision,
        agent: Agent,
        gateway: Gateway,
        raft: Raft,
        mesh: Mesh,
        certificates: Certificates,
        roots: Roots,
        sessions: Sessions,
        dispatcher: Dispatcher,
        elections: Elections,
    }
    let Some { debug, supervision, agent, gateway, raft, mesh, certificates, roots, sessions, dispatcher, elections } =
        toml::from_str(text).map_err(|e| e.to_string())?;
    let rest = Settings::default();
    let (settings, faults) = Settings {
        debug,
        supervision,
        agent,
        gateway,
        raft,
        mesh,
        certificates,
        roots,
        sessions,
        dispatcher,
        elections,
        ..rest
    }
    .checked();
    match faults.first() {
        None => Ok(settings),
        Some(fault) => Err(fault.to_string()),
    }
}

#[test]
fn without_a_file_every_actor_has_its_own_defaults() {
    let s = settings("").unwrap();
    assert_eq!(s.agent(), AgentConfig::default());
    assert_eq!(s.gateway(), GatewayConfig::default());
    assert_eq!(s.raft(), RaftConfig::default());
    assert_eq!(s.mesh(), MeshConfig::default());
    assert_eq!(s.roles(), muster_role_manager::Config::default());
    assert_eq!(s.certificates(), muster_cert_authority::Config::default());
    let year = Duration::from_secs(365 * 24 * 3600);
    let rotation = muster_root_rotation::Config { longest_certificate: year, ..Default::default() };
    assert_eq!(s.rotation(), rotation);
    assert_eq!(s.sessions(), SessionsConfig::default());
    assert_eq!(s.dispatcher(), DispatcherConfig::default());
    assert_eq!(s.elections(), ElectionsConfig::default());
    assert_eq!(s.api(), ApiLimits::default());
    assert_eq!(s.backoff(), Backoff::SLOW);
}

/// The relations of the defaults that their reasons name.
#[test]
fn defaults_fit_each_other() {
    let (agent, dial, join) =
        (AgentConfig::default(), muster_gateway::DialTimeouts::default(), muster_agent::JoinConfig::default());
    assert!(agent.reconnect_first <= agent.reconnect_cap && agent.sign_retry_first <= agent.sign_retry_cap);
    assert!(join.retry_first <= join.retry_cap && agent.heartbeat_jitter <= 0.5);
    assert!(dial.greeting >= GatewayConfig::default().catch_up, "the other side may wait that long");
    assert!(MeshConfig::default().idle > Duration::from_millis(10_500), "two pings of a quiet peer and time to arrive");
    let elections = ElectionsConfig::default();
    let (keeper, coordination) = (elections.keeper, elections.coordination);
    assert!(coordination.fresh >= coordination.ack_window && coordination.ack_window >= coordination.departed_window);
    assert!(keeper.stood_still >= keeper.tick * 2, "two beats of the clock");
    assert!(SessionsConfig::default().digest_bytes <= 512 << 10, "a frame holds 1 MiB");
    let certificates = muster_cert_authority::Config::default();
    assert!(certificates.max_joins <= certificates.max_pending, "they are a part of them");
}

#[test]
fn a_key_reaches_the_actors_that_use_it() {
    let s =
        settings("[agent]\nheartbeat = \"1s\"\n[raft]\nheartbeat = \"50ms\"\nelection_timeout = \"300ms\"\n").unwrap();
    let second = Duration::from_secs(1);
    assert_eq!((s.agent().heartbeat, s.sessions().heartbeat), (second, second));
    assert_eq!(s.roles().election_timeout, s.raft().election_timeout);
    assert_eq!(s.raft().read_retry, Duration::from_millis(100));
    assert_eq!(s.raft().transfer_wait, RaftConfig::default().transfer_wait, "never shorter");
    let s = settings("[raft]\nelection_timeout = \"3s\"\n").unwrap();
    assert_eq!(s.raft().transfer_wait, Duration::from_secs(10));
    assert_eq!(s.sessions().leaderless_after, Duration::from_secs(12));
}

#[test]
fn derived_keys_follow_their_source_until_set() {
    let s = settings("[gateway]\njoins_per_second = 3\n[sessions]\nregistrations_per_second = 10\n").unwrap();
    assert_eq!((s.gateway().join_rate.burst, s.sessions().registration_burst), (15, 20.0));
    let s = settings("[dispatcher]\ngrace = \"1m\"\n").unwrap();
    assert_eq!(s.dispatcher().grace.as_secs(), 60);
    let s = settings("[agent]\nheartbeat = \"2s\"\n").unwrap();
    assert_eq!(s.dispatcher().grace.as_millis(), 6_600 + 2_000 + 1_500);
    let s = settings("[agent]\nheartbeat = \"100ms\"\n").unwrap();
    assert_eq!(s.dispatcher().grace, 2 * s.sessions().digest_every);
}

#[test]
fn values_that_cannot_work_are_refused_with_a_sentence() {
    for (text, words) in [
        ("[debug]\nfeature_level = 1", "[debug] feature_level = 1: at least 2, the first that gates can raise"),
        ("[agent]\nheartbeat = \"5\"", "not a duration"),
        ("[agent]\nheartbeat = 5", "string"),
        ("[agent]\nheartbeat = \"10ms\"", "[agent] heartbeat = 10ms: at least 50ms"),
        ("[raft]\nelection_timeout = \"200ms\"", "at least 300ms, three times [raft] heartbeat"),
        ("[raft]\nheartbeat = \"5s\"", "at most 1s"),
        ("[raft]\nelection_timeout = \"11s\"", "at most 10s"),
        ("[raft]\nsnapshot_bytes = 0", "[raft] snapshot_bytes = 0: must be more than zero"),
        ("[raft]\nkeep_entries = -1", "keep_entries"),
        ("[raft]\nmax_proposals = 100", "unknown field `max_proposals`"),
        ("[raft]\nsnapshot_entries = 9000000000000000", "too large"),
        ("[raft]\ndisk_limit = \"99999d\"", "too large"),
        ("[raft]\nsnapshot_bytes = 1000000000", "[mesh] max_snapshot_bytes"),
        ("[certificates]\nlifetime = \"59m\"", "[certificates] lifetime = 59m: at least 1h"),
        ("[sessions]\nmissed = 0", "[sessions] missed"),
        ("[sessions]\nregistrations_per_second = nan", "registrations_per_second"),
        ("[dispatcher]\ngrace = \"10s\"", "at least 16500ms, the time after which a silent node is down"),
    ] {
        let refused = settings(text).expect_err(text);
        assert!(refused.contains(words), "{text}: {refused}");
    }
}
