//! A locked daemon's answers: its status, and an attempt to unlock it.

use std::sync::Arc;

use muster_messages::wire::Request;
use muster_messages::{Details, ErrorBody, ErrorCode, detail};

use crate::ports::LockedDaemon;
use crate::reads::to_text;

/// The caller is the user of the admin socket: a locked daemon serves nothing else.
pub(crate) async fn answer(locked: &Arc<dyn LockedDaemon>, request: &Request) -> Result<String, ErrorBody> {
    match request {
        Request::Status { .. } => to_text(&locked.status()),
        Request::Unlock { key, version } => {
            let (locked, key, version) = (Arc::clone(locked), key.clone(), *version);
            let unlocked = tokio::task::spawn_blocking(move || locked.unlock(&key, version)).await;
            let stopping = |_| ErrorBody::new(ErrorCode::Internal, "the daemon is shutting down");
            to_text(&unlocked.map_err(stopping)??)
        }
        _ => Err(refusal(locked)),
    }
}

/// The answer to everything else.
pub(crate) fn refusal(locked: &Arc<dyn LockedDaemon>) -> ErrorBody {
    let version = locked.status().version;
    let text = format!(
        "this daemon is locked: it needs version {version} of the cluster's unlock key (`muster unlock`; \
         `muster status` says more)"
    );
    ErrorBody::new(ErrorCode::Locked, text).with_details(&Details::default().with(detail::VERSION, &version))
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_messages::{LockedView, Principal, Revision, Role, Secret, UnlockedView};
    use tokio::sync::watch;

    use super::*;
    use crate::service::Service;
    use crate::tests::{REQUEST, service};

    /// Opens with `right`.
    pub(crate) struct Fixed;

    impl LockedDaemon for Fixed {
        fn status(&self) -> LockedView {
            LockedView { locked: true, node: None, version: Revision(418), since: None, unattended: None }
        }
        fn unlock(&self, key: &Secret, _: Option<Revision>) -> Result<UnlockedView, ErrorBody> {
            match key.expose() {
                "right" => Ok(UnlockedView { unlocked: true, version: Revision(418) }),
                _ => Err(ErrorBody::new(ErrorCode::BadUnlockKey, "wrong")),
            }
        }
    }

    async fn asked(service: &Service, caller: &Principal, request: Request) -> Result<String, ErrorCode> {
        let call = muster_messages::wire::ApiCall { id: 0, request_id: REQUEST, timeout_ms: 1_000, request };
        service.answer(caller.clone(), call).await.map_err(|error| error.code)
    }

    #[tokio::test]
    async fn locked_daemon_answers_status_and_unlock_only() {
        let mut service = service(watch::Sender::new(None).subscribe());
        service.ports_mut().locked = Some(Arc::new(Fixed));
        for caller in [Principal::Operator, crate::tests::node(1)] {
            let status = asked(&service, &caller, Request::Status { fresh: false }).await.unwrap();
            assert!(status.contains("\"locked\":true") && status.contains("418"), "{status}");
            let unlock = |key: &str| Request::Unlock { key: Secret::new(key), version: None };
            assert_eq!(asked(&service, &caller, unlock("wrong")).await, Err(ErrorCode::BadUnlockKey));
            assert!(asked(&service, &caller, unlock("right")).await.is_ok());
            for other in [
                Request::NodeList { fresh: false },
                Request::TokenShow { role: Role::Manager },
                Request::AutolockKey { version: None },
                Request::Contact,
                Request::OpenAdmission,
            ] {
                assert_eq!(asked(&service, &caller, other).await, Err(ErrorCode::Locked));
            }
        }
        assert_eq!((ErrorCode::Locked.http_status(), ErrorCode::Locked.exit_status()), (503, 5));
    }
}
