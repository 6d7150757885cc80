//! Steps of a root rotation: carried out on the leader by the actor that rotates the roots.

use muster_messages::protocol::{RootRotationMsg, RootsChange};
use muster_messages::wire::Request;
use muster_messages::{ErrorBody, ErrorCode, RootChangeView};

use crate::core;
use crate::reads::to_text;
use crate::work::Work;

/// A request that changes the roots, to the leader.
pub(crate) struct RootRequests<'a> {
    pub work: Work<'a>,
}

impl RootRequests<'_> {
    /// The answer names the root; the one to a rotation describes its beginning, too.
    pub async fn lead(&self) -> Result<String, ErrorBody> {
        let change = change_of(&self.work.asked.request)
            .ok_or_else(|| ErrorBody::new(ErrorCode::Internal, "this request changes no root"))?;
        let rotates = matches!(change, RootsChange::Rotate { .. } | RootsChange::Issued { .. });
        let requests = matches!(change, RootsChange::Request { .. });
        let changed = self.changed(change).await?;
        if requests {
            return to_text(&self.with_request(changed)?);
        }
        if !rotates {
            return to_text(&changed);
        }
        // The change is applied here, but the roots may have changed again since.
        let status = core::roots(&self.work.local().tables)?;
        to_text(&RootChangeView { status: Some(status), ..changed })
    }

    async fn changed(&self, change: RootsChange) -> Result<RootChangeView, ErrorBody> {
        let asked = self.work.asked;
        let (by, request) = (asked.caller.clone(), asked.request_id);
        let make = |reply| RootRotationMsg::ChangeRoots { change, by, request, reply };
        let done = self.work.ask(&self.work.manager.leader.rotation, make).await?;
        Ok(RootChangeView { root: done.root, changed: done.changed, revision: done.revision, csr: None, status: None })
    }

    /// The request that is pending now: of an earlier attempt, or of another caller, if there was one already.
    fn with_request(&self, changed: RootChangeView) -> Result<RootChangeView, ErrorBody> {
        let requested = self.work.local().tables.authorities.requested.clone();
        let requested = requested.ok_or_else(|| {
            let text = "the request was answered or aborted meanwhile; `muster ca ls` shows the roots";
            ErrorBody::new(ErrorCode::Conflict, text)
        })?;
        Ok(RootChangeView { root: Some(requested.root), csr: Some(requested.csr_pem.clone()), ..changed })
    }
}

/// What a request asks of the roots.
fn change_of(request: &Request) -> Option<RootsChange> {
    Some(match request {
        Request::RootRotate { prepare, compromised } => {
            RootsChange::Rotate { automatic: !prepare, compromised: *compromised }
        }
        Request::RootActivate { root } => RootsChange::Activate(*root),
        Request::RootAbort => RootsChange::Abort,
        Request::RootRetire { root, force } => RootsChange::Retire { root: *root, force: *force },
        Request::RootRevoke { root } => RootsChange::Revoke(*root),
        Request::RootRequest { compromised } => RootsChange::Request { compromised: *compromised },
        Request::RootIssued { prepare, answer } => RootsChange::Issued { automatic: !prepare, answer: answer.clone() },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_messages::RootId;

    #[test]
    fn requests_ask_for_their_own_step_of_a_rotation() {
        let root = RootId([7; 8]);
        let rotate = |prepare, compromised| change_of(&Request::RootRotate { prepare, compromised });
        assert_eq!(rotate(false, true), Some(RootsChange::Rotate { automatic: true, compromised: true }));
        assert_eq!(rotate(true, false), Some(RootsChange::Rotate { automatic: false, compromised: false }));
        assert_eq!(change_of(&Request::RootActivate { root }), Some(RootsChange::Activate(root)));
        assert_eq!(change_of(&Request::RootAbort), Some(RootsChange::Abort));
        assert_eq!(change_of(&Request::RootRevoke { root }), Some(RootsChange::Revoke(root)));
        for force in [false, true] {
            let retire = Request::RootRetire { root, force };
            assert_eq!(change_of(&retire), Some(RootsChange::Retire { root, force }));
        }
        let answer = "certificates".to_owned();
        let issued = change_of(&Request::RootIssued { prepare: true, answer: answer.clone() });
        assert_eq!(issued, Some(RootsChange::Issued { automatic: false, answer }));
        let request = change_of(&Request::RootRequest { compromised: true });
        assert_eq!(request, Some(RootsChange::Request { compromised: true }));
        assert_eq!(change_of(&Request::RootList), None, "it only reads");
    }
}
