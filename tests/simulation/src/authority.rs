//! A leader's certificate authority: incarnations and effects. Certificates are represented by their contents, unsigned.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::JoinReply;
use muster_messages::{CertificatePin, ErrorBody, ErrorCode};
use muster_pki::Signed;

use crate::adversaries::Adversaries;
use crate::agents::read_certificate;
use crate::blocks::Blocks;
use crate::bugs::Bug;
use crate::events::{Answered, Event};
use crate::machine::{Asker, Authority, Caller, MachineIdx};
use crate::roots::{FOUNDING, id_of};
use crate::world::World;

impl Authority {
    pub(crate) fn at(world: &mut World, idx: MachineIdx) -> Option<&mut Authority> {
        world.machines[idx].runtime.as_mut()?.leader.as_mut()?.authority.as_mut()
    }

    pub(crate) fn restart(world: &mut World, idx: MachineIdx, runtime: u32) {
        world.incarnations += 1;
        let incarnation = world.incarnations;
        let config = world.settings.authority.clone();
        let Some(h) = world.machines[idx].runtime_mut(runtime) else { return };
        let tables = h.core.replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.authority.is_none()) else { return };
        let core = authority::CertAuthority::new(config);
        leader.authority = Some(Authority { incarnation, core, asks: BTreeMap::new() });
        Self::step(world, idx, authority::Input::Replica(tables));
    }

    pub(crate) fn crash(world: &mut World, idx: MachineIdx) {
        let Some(runtime) = world.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        if runtime.leader.as_mut().is_some_and(|l| l.authority.take().is_some()) {
            world.log(format!("the certificate authority of n{} crashes", idx + 1));
            let back = world.rng.millis(1, 400);
            world.time.after(back, Event::AuthorityBack { idx, runtime: number });
        }
    }

    pub(crate) fn woke(world: &mut World, idx: MachineIdx, incarnation: u32) {
        if Self::at(world, idx).is_some_and(|a| a.incarnation == incarnation) {
            Self::step(world, idx, authority::Input::Woke);
        }
    }

    pub(crate) fn step(world: &mut World, idx: MachineIdx, input: authority::Input) {
        let (now, wall) = (world.clock(idx), world.wall(idx));
        let Some(authority) = Self::at(world, idx) else { return };
        let incarnation = authority.incarnation;
        let mut effects = Vec::new();
        authority.core.step(now, wall, input, &mut effects);
        for effect in effects {
            Self::apply_effect(world, idx, incarnation, effect);
        }
    }

    fn apply_effect(world: &mut World, idx: MachineIdx, incarnation: u32, effect: authority::Effect) {
        match effect {
            authority::Effect::Sign { step, profile, .. } => {
                let authority::Profile::Node(profile) = profile else { return };
                let serial = format!("{:08x}", world.number());
                let not_after = profile.now.plus(profile.lifetime);
                let granted = profile.granted.unwrap_or_default();
                // What a node reads from its certificate.
                let (role, now, history) = (profile.role, profile.now.0, profile.incarnation.0);
                let cluster = Self::at(world, idx).and_then(|a| a.core.tables().cluster.clone());
                let issuer = cluster.and_then(|cluster| id_of(&cluster.root_cert_pem)).unwrap_or(FOUNDING);
                let cert_pem = format!("{role} {granted} {serial} {} {now} {history} {issuer}", not_after.0);
                // Serials identify certificates here: those that nodes present have no pin.
                let pin = CertificatePin { fingerprint: [0; 32], key: [0; 32] };
                let signed = Signed { cert_pem, serial, not_after, pin, issuer };
                // Long enough for an activation in between, which is rare otherwise.
                if world.settings.bug == Some(Bug::RecordOfFormerRoot) {
                    let (takes, signed) = (world.rng.millis(1, 500), Box::new(signed));
                    world.time.after(takes, Event::SignedLate { idx, incarnation, step, signed });
                } else {
                    Self::signed(world, idx, incarnation, step, signed);
                }
            }
            authority::Effect::SignWorkload(..) | authority::Effect::Confirm(_) => {} // no workload runs here
            authority::Effect::Propose { step, command } => {
                world
                    .trace
                    .print_if_verbose(world.time.now(), || format!("the authority proposes {:?}", command.changes));
                world.propose(idx, Asker::Authority { incarnation, step }, command, Duration::from_secs(5));
            }
            authority::Effect::CompareClocks | authority::Effect::ClockNews(_) => {} // clocks are not compared here
            authority::Effect::CatchUp(_) => {} // every newer replica is passed in anyway
            authority::Effect::Answer(ask, answer) => {
                let Some((caller, node)) = Self::at(world, idx).and_then(|a| a.asks.remove(&ask)) else { return };
                if Adversaries::answered(world, caller, answer.is_ok()) {
                    return;
                }
                let pem = answer.map(|a| match a {
                    authority::Answer::Signed(reply) => reply.cert_pem,
                    authority::Answer::Joined(JoinReply::Joined { cert_pem, .. }) => cert_pem,
                    _ => String::new(),
                });
                if let (Some(node), Err(error)) = (node, &pem) {
                    world.trace.print_if_verbose(world.time.now(), || {
                        format!("{node} receives no certificate: {}", error.message)
                    });
                }
                if let (Some(node), Ok(text)) = (node, &pem)
                    && let Some((certificate, _)) = read_certificate(node, text)
                {
                    Blocks::check_signed(world, idx, node, certificate.not_after);
                }
                world.reply(idx, caller, Answered::Certificate(pem));
            }
            authority::Effect::WakeAt(at) => {
                let at = world.moment(idx, at);
                world.time.at(at, Event::AuthorityWoke { idx, incarnation });
            }
        }
    }

    pub(crate) fn signed(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        step: authority::StepId,
        signed: Signed,
    ) {
        if Self::at(world, idx).is_some_and(|a| a.incarnation == incarnation) {
            Self::step(world, idx, authority::Input::Signed(step, Ok(signed)));
        }
    }

    pub(crate) fn step_ended(
        world: &mut World,
        idx: MachineIdx,
        incarnation: u32,
        step: authority::StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if Self::at(world, idx).is_some_and(|a| a.incarnation == incarnation) {
            Self::step(world, idx, authority::Input::Proposed(step, result.map(|a| a.revision)));
        }
    }

    pub(crate) fn request(world: &mut World, to: MachineIdx, caller: Caller, request: authority::CertificateRequest) {
        let node = match &request {
            authority::CertificateRequest::Node(request) => request.identity.node().map(|(node, _)| node),
            authority::CertificateRequest::Join(request) => Some(request.node),
            _ => None,
        };
        match Self::at(world, to) {
            Some(authority) => {
                let ask = authority::AskId(caller.ask);
                authority.asks.insert(ask, (caller, node));
                Self::step(world, to, authority::Input::Asked(ask, request));
            }
            None => {
                let unreachable = ErrorBody::new(ErrorCode::Unreachable, "this manager does not lead");
                world.reply(to, caller, Answered::Certificate(Err(unreachable)));
            }
        }
    }
}
