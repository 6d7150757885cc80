//! A leader's certificate authority: incarnations and effects. Certificates are represented by their contents, unsigned.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::JoinReply;
use muster_messages::{CertificatePin, RootId};
use muster_pki::Signed;

use crate::agents::read_certificate;
use crate::machine::{Asker, Authority, MachineIdx};
use crate::simulation::{Answered, Event, Simulation};

impl Simulation {
    pub(crate) fn authority(&mut self, idx: MachineIdx) -> Option<&mut Authority> {
        self.machines[idx].runtime.as_mut()?.leader.as_mut()?.authority.as_mut()
    }

    pub(crate) fn authority_back(&mut self, idx: MachineIdx, runtime: u32) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let config = self.settings.authority.clone();
        let Some(h) = self.machines[idx].runtime_mut(runtime) else { return };
        let tables = h.core.replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.authority.is_none()) else { return };
        let core = authority::CertAuthority::new(config);
        leader.authority = Some(Authority { incarnation, core, asks: BTreeMap::new() });
        self.authority_step(idx, authority::Input::Replica(tables));
    }

    pub(crate) fn crash_authority(&mut self, idx: MachineIdx) {
        let Some(runtime) = self.machines[idx].runtime.as_mut() else { return };
        let number = runtime.number;
        if runtime.leader.as_mut().is_some_and(|l| l.authority.take().is_some()) {
            self.log(format!("the certificate authority of n{} crashes", idx + 1));
            let back = self.rng.millis(1, 400);
            self.time.after(back, Event::AuthorityBack { idx, runtime: number });
        }
    }

    pub(crate) fn authority_woke(&mut self, idx: MachineIdx, incarnation: u32) {
        if self.authority(idx).is_some_and(|a| a.incarnation == incarnation) {
            self.authority_step(idx, authority::Input::Woke);
        }
    }

    pub(crate) fn authority_step(&mut self, idx: MachineIdx, input: authority::Input) {
        let (now, wall) = (self.clock(idx), self.wall(idx));
        let Some(authority) = self.authority(idx) else { return };
        let incarnation = authority.incarnation;
        let mut effects = Vec::new();
        authority.core.step(now, wall, input, &mut effects);
        for effect in effects {
            self.apply_authority_effect(idx, incarnation, effect);
        }
    }

    fn apply_authority_effect(&mut self, idx: MachineIdx, incarnation: u32, effect: authority::Effect) {
        match effect {
            authority::Effect::Sign { step, profile, .. } => {
                let authority::Profile::Node(profile) = profile else { return };
                let serial = format!("{:08x}", self.number());
                let not_after = profile.now.plus(profile.lifetime);
                let granted = profile.granted.unwrap_or_default();
                // What a node reads from its certificate.
                let (role, now, incarnation) = (profile.role, profile.now.0, profile.incarnation.0);
                let cert_pem = format!("{role} {granted} {serial} {} {now} {incarnation}", not_after.0);
                // Serials identify certificates here: those that nodes present have no pin.
                let pin = CertificatePin { fingerprint: [0; 32], key: [0; 32] };
                let signed = Signed { cert_pem, serial, not_after, pin, issuer: RootId([0; 8]) };
                self.authority_step(idx, authority::Input::Signed(step, Ok(signed)));
            }
            authority::Effect::Propose { step, command } => {
                self.trace
                    .print_if_verbose(self.time.now(), || format!("the authority proposes {:?}", command.changes));
                self.propose(idx, Asker::Authority { incarnation, step }, command, Duration::from_secs(5));
            }
            authority::Effect::CompareClocks | authority::Effect::ClockNews(_) => {} // clocks are not compared here
            authority::Effect::CatchUp(_) => {} // every newer replica is passed in anyway
            authority::Effect::Answer(ask, answer) => {
                let Some((caller, node)) = self.authority(idx).and_then(|a| a.asks.remove(&ask)) else { return };
                if self.adversary_answered(caller.ask, answer.is_ok()) {
                    return;
                }
                let pem = answer.map(|a| match a {
                    authority::Answer::Signed(reply) => reply.cert_pem,
                    authority::Answer::Joined(JoinReply::Joined { cert_pem, .. }) => cert_pem,
                    _ => String::new(),
                });
                if let (Some(node), Err(error)) = (node, &pem) {
                    self.trace.print_if_verbose(self.time.now(), || {
                        format!("{node} receives no certificate: {}", error.message)
                    });
                }
                if let (Some(node), Ok(text)) = (node, &pem)
                    && let Some((certificate, _)) = read_certificate(node, text)
                {
                    self.check_signed(idx, node, certificate.not_after);
                }
                self.reply(idx, caller, Answered::Certificate(pem));
            }
            authority::Effect::WakeAt(at) => {
                let at = self.moment(idx, at);
                self.time.at(at, Event::AuthorityWoke { idx, incarnation });
            }
        }
    }

    pub(crate) fn authority_step_ended(
        &mut self,
        idx: MachineIdx,
        incarnation: u32,
        step: authority::StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.authority(idx).is_some_and(|a| a.incarnation == incarnation) {
            self.authority_step(idx, authority::Input::Proposed(step, result.map(|a| a.revision)));
        }
    }
}
