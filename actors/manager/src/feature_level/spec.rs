//! How the actor is made, and its two children: the candidacy for raising the level, and the membership of the scope.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_elector::{BootTime, ConfigRefusal};
use muster_kernel::{Address, Spec};
use muster_messages::{LEVEL_RECONCILER, MANAGERS_SCOPE, level_release};
use muster_reconciler::{
    Handler, LeaseTiming, Member, MemberSetup, MemberView, Reconcilers, Setup, member_spec, reconcilers_spec,
};
use tokio::sync::watch;

use super::raise::Raise;
use super::{FeatureLevel, LevelPorts};

/// The actor's spec.
pub fn spec(ports: LevelPorts) -> Spec {
    let make = move || Ok(FeatureLevel::new(ports.clone()));
    Spec::actor("feature-level", Address::new(64), make).contained().with_children()
}

/// The candidacy for raising the level. The library decides when, and does nothing beside a newer candidate.
pub(super) fn candidacy_spec(ports: &LevelPorts) -> Result<(Spec, Reconcilers), ConfigRefusal> {
    let LevelPorts { me, level, cluster, .. } = ports;
    let raise: Arc<dyn Handler> = Arc::new(Raise(Arc::clone(cluster)));
    reconcilers_spec(Setup {
        node: Some(*me),
        handlers: BTreeMap::from([(LEVEL_RECONCILER.to_owned(), raise)]),
        ..Setup::new(Arc::clone(cluster), me.to_string(), level_release(*level).into())
    })
}

/// The membership of the scope, at the level of this build.
pub(super) fn membership_spec(ports: &LevelPorts) -> (Spec, watch::Receiver<MemberView>) {
    let LevelPorts { me, level, cluster, .. } = ports;
    let member = Member::new(MANAGERS_SCOPE, me.to_string().as_str(), level_release(*level).into());
    let member = member.on(*me).safe_without_lease();
    let (cluster, lease) = (Arc::clone(cluster), LeaseTiming::default());
    // The member leaves when its lease ends, not before.
    let (spec, view, _leave) = member_spec("member", MemberSetup { cluster, clock: Arc::new(BootTime), lease, member });
    (spec, view)
}
