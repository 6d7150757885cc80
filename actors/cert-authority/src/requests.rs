//! Requests as they arrive, and their reply ports.

use std::time::Duration;

use muster_messages::protocol::{CertAuthorityMsg, Reply, UserCertificate};
use muster_messages::wire::{JoinReply, SignReply, SignedWorkload};
use muster_messages::{ErrorBody, NodeId, Tables, WallTime, WorkloadName};
use tracing::{debug, info};

use crate::core::{Answer, CertificateRequest, NodeRequest, UserRequest, WorkloadRequest};
use crate::verify;

/// The reply port of a request.
pub(crate) enum Port {
    Sign(Reply<Result<SignReply, ErrorBody>>),
    Join(Reply<Result<JoinReply, ErrorBody>>),
    User(Reply<Result<UserCertificate, ErrorBody>>),
    Workload(Reply<Result<SignedWorkload, ErrorBody>>),
}

/// A message: its port with its request, if that can be judged, or a read.
pub(crate) enum Arrived {
    Request(Port, Result<CertificateRequest, ErrorBody>),
    GetHolders { workload: WorkloadName, reply: Reply<Result<Vec<(NodeId, WallTime)>, ErrorBody>> },
}

pub(crate) fn read(msg: CertAuthorityMsg, tables: &Tables) -> Arrived {
    match msg {
        CertAuthorityMsg::SignNode { identity, observed_addr, csr_pem, reply } => {
            let cert_request = verify::key(&csr_pem).map(|key| {
                let observed = observed_addr.parse().ok();
                CertificateRequest::Node(NodeRequest { identity: *identity, observed, key })
            });
            Arrived::Request(Port::Sign(reply), cert_request)
        }
        CertAuthorityMsg::Join { observed_addr, request, reply } => {
            let cert_request = verify::join(*request, observed_addr.parse().ok(), tables);
            let cert_request = cert_request.map(|join| CertificateRequest::Join(Box::new(join)));
            Arrived::Request(Port::Join(reply), cert_request)
        }
        CertAuthorityMsg::SignUser { name, rights, lifetime_ms, csr_pem, by, request, reply } => {
            let lifetime = lifetime_ms.map(Duration::from_millis);
            let cert_request = verify::key(&csr_pem)
                .map(|key| CertificateRequest::User(UserRequest { name, rights, lifetime, by, request, key }));
            Arrived::Request(Port::User(reply), cert_request)
        }
        CertAuthorityMsg::SignWorkload { identity, request, reply } => {
            let cert_request = verify::wanted(&request).map(|wanted| {
                let workload = request.workload;
                CertificateRequest::Workload(WorkloadRequest { identity: *identity, workload, wanted })
            });
            Arrived::Request(Port::Workload(reply), cert_request)
        }
        CertAuthorityMsg::GetHolders { workload, reply } => Arrived::GetHolders { workload, reply },
    }
}

impl Port {
    /// Answers and logs the answer. A caller that is gone asks again.
    pub fn answer(self, answer: Result<Answer, ErrorBody>) {
        match &answer {
            Ok(Answer::Signed(_)) => debug!("certificate signed"),
            Ok(Answer::Joined(JoinReply::Joined { node, .. })) => info!(%node, "node joined"),
            Ok(Answer::Joined(_)) => {}
            Ok(Answer::Workload(_)) => debug!("signed for a workload"),
            Ok(Answer::User(user)) => info!(serial = %user.serial, "user certificate signed"),
            Err(refusal) => debug!(code = %refusal.code, why = %refusal.message, "certificate refused"),
        }
        let _gone = match (self, answer) {
            (Self::Sign(port), Ok(Answer::Signed(reply))) => port.send(Ok(reply)).is_ok(),
            (Self::Join(port), Ok(Answer::Joined(reply))) => port.send(Ok(reply)).is_ok(),
            (Self::User(port), Ok(Answer::User(user))) => port.send(Ok(user)).is_ok(),
            (Self::Workload(port), Ok(Answer::Workload(signed))) => port.send(Ok(signed)).is_ok(),
            (Self::Sign(port), Err(refusal)) => port.send(Err(refusal)).is_ok(),
            (Self::Join(port), Err(refusal)) => port.send(Err(refusal)).is_ok(),
            (Self::User(port), Err(refusal)) => port.send(Err(refusal)).is_ok(),
            (Self::Workload(port), Err(refusal)) => port.send(Err(refusal)).is_ok(),
            (_, Ok(_)) => unreachable!("the core answers in the kind of the request"),
        };
    }
}
