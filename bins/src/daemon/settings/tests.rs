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
        sessions: Sessions,
        dispatcher: Dispatcher,
        elections: Elections,
    }
    let Some { debug, supervision, agent, gateway, raft, mesh, certificates, sessions, dispatcher, elections } =
        toml::from_str(text).map_err(|e| e.to_string())?;
    let rest = Settings::default();
    Settings { debug, supervision, agent, gateway, raft, mesh, certificates, sessions, dispatcher, elections, ..rest }
        .checked()
}

#[test]
fn without_a_file_every_actor_has_its_own_defaults() {
    let s = settings("").unwrap();
    assert_eq!(s.agent(), AgentConfig::default());
    assert_eq!(s.joining(), JoinConfig::default());
    assert_eq!(s.dial(), DialTimeouts::default());
    assert_eq!(s.gateway(), GatewayConfig::default());
    assert_eq!(s.join_service(), JoinLimits::default());
    assert_eq!(s.raft(), RaftConfig::default());
    assert_eq!(s.mesh(), MeshConfig::default());
    assert_eq!(s.roles(), muster_role_manager::Config::default());
    assert_eq!(s.certificates(), muster_cert_authority::Config::default());
    assert_eq!(s.sessions(), SessionsConfig::default());
    assert_eq!(s.dispatcher(), DispatcherConfig::default());
    assert_eq!(s.elections(), ElectionsConfig::default());
    assert_eq!(s.api(), ApiLimits::default());
    assert_eq!((s.intensity(), s.backoff()), (Intensity::default(), Backoff::SLOW));
}

#[test]
fn a_key_reaches_the_actors_that_use_it() {
    let s =
        settings("[agent]\nheartbeat = \"1s\"\n[raft]\nheartbeat = \"50ms\"\nelection_timeout = \"300ms\"\n").unwrap();
    let second = Duration::from_secs(1);
    assert_eq!((s.agent().heartbeat, s.sessions().heartbeat), (second, second));
    assert_eq!(s.roles().election_timeout, s.raft().election_timeout);
    assert_eq!(s.raft().read_retry, Duration::from_millis(100));
}

#[test]
fn derived_keys_follow_their_source_until_set() {
    let s = settings("[gateway]\njoins_per_second = 3\n[sessions]\nregistrations_per_second = 10\n").unwrap();
    assert_eq!((s.gateway().join_rate.burst, s.sessions().registration_burst), (15, 20.0));
    let s = settings("[gateway]\njoins_per_second = 3\njoins_burst = 4\n[dispatcher]\ngrace = \"1m\"\n").unwrap();
    assert_eq!((s.gateway().join_rate.burst, s.dispatcher().grace.as_secs()), (4, 60));
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
        ("[agent]\nheartbeat_jitter = -0.1", "heartbeat_jitter"),
        ("[agent]\nheartbeat_jitter = 0.9", "at most 0.5"),
        ("[agent]\nreconnect_cap = \"1ms\"", "reconnect_first"),
        ("[raft]\nelection_timeout = \"200ms\"", "at least 300ms, three times [raft] heartbeat"),
        ("[raft]\nheartbeat = \"5s\"", "at most 1s"),
        ("[raft]\nmax_proposals = 0", "[raft] max_proposals = 0: must be more than zero"),
        ("[raft]\nmax_proposals = -1", "max_proposals"),
        ("[raft]\nsnapshot_entries = 9000000000000000", "too large"),
        ("[raft]\ntransfer_wait = \"99999d\"", "too large"),
        ("[raft]\nsnapshot_bytes = 1000000000", "[mesh] max_snapshot_bytes"),
        ("[mesh]\nidle = \"5s\"", "[mesh] idle"),
        ("[elections]\nfresh = \"2s\"", "[elections] fresh = 2s: at least 3s, ack_window"),
        ("[elections]\nstood_still = \"100ms\"", "at least 200ms, two beats of the clock"),
        ("[certificates]\nlifetime = \"59m\"", "[certificates] lifetime = 59m: at least 1h"),
        ("[certificates]\nmax_joins = 1000", "max_pending"),
        ("[sessions]\nmissed = 0", "[sessions] missed"),
        ("[sessions]\nregistrations_per_second = nan", "registrations_per_second"),
        ("[dispatcher]\ngrace = \"10s\"", "at least 16500ms, the time after which a silent node is down"),
        ("[supervision]\nmax_restarts = 0", "max_restarts"),
    ] {
        let refused = settings(text).expect_err(text);
        assert!(refused.contains(words), "{text}: {refused}");
    }
}
