//! The certificate authority of a leader: its incarnations and effects. Signatures are stood for by their contents.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_cert_authority::core as authority;
use muster_messages::protocol::{Applied, ProposeError};
use muster_messages::wire::JoinReply;
use muster_messages::{CertificatePin, RootId};
use muster_pki::Signed;

use crate::agents::read_certificate;
use crate::machine::{Asker, Authority, Place};
use crate::world::{Answered, Event, Universe};

impl Universe {
    pub(crate) fn authority(&mut self, place: Place) -> Option<&mut Authority> {
        self.machines[place].half.as_mut()?.leader.as_mut()?.authority.as_mut()
    }

    pub(crate) fn authority_back(&mut self, place: Place, half: u32) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let config = self.settings.authority.clone();
        let Some(h) = self.machines[place].half_mut(half) else { return };
        let tables = h.core.replica().tables.clone();
        let Some(leader) = h.leader.as_mut().filter(|l| l.authority.is_none()) else { return };
        let core = authority::CertAuthority::new(config);
        leader.authority = Some(Authority { incarnation, core, asks: BTreeMap::new() });
        self.authority_step(place, authority::Input::Copy(tables));
    }

    pub(crate) fn crash_authority(&mut self, place: Place) {
        let Some(half) = self.machines[place].half.as_mut() else { return };
        let number = half.number;
        if half.leader.as_mut().is_some_and(|l| l.authority.take().is_some()) {
            self.say(format!("the certificate authority of n{} crashes", place + 1));
            let back = self.dice.millis(1, 400);
            self.time.after(back, Event::AuthorityBack { place, half: number });
        }
    }

    pub(crate) fn authority_woke(&mut self, place: Place, incarnation: u32) {
        if self.authority(place).is_some_and(|a| a.incarnation == incarnation) {
            self.authority_step(place, authority::Input::Woke);
        }
    }

    pub(crate) fn authority_step(&mut self, place: Place, input: authority::Input) {
        let (now, wall) = (self.clock(place), self.wall(place));
        let Some(authority) = self.authority(place) else { return };
        let incarnation = authority.incarnation;
        let mut effects = Vec::new();
        authority.core.step(now, wall, input, &mut effects);
        for effect in effects {
            self.perform_authority(place, incarnation, effect);
        }
    }

    fn perform_authority(&mut self, place: Place, incarnation: u32, effect: authority::Effect) {
        match effect {
            authority::Effect::Sign { step, profile, .. } => {
                let authority::Profile::Node(profile) = profile else { return };
                let serial = format!("{:08x}", self.number());
                let not_after = profile.now.plus(profile.lifetime);
                let granted = profile.granted.unwrap_or_default();
                // What a node reads out of its certificate.
                let (role, now, incarnation) = (profile.role, profile.now.0, profile.incarnation.0);
                let cert_pem = format!("{role} {granted} {serial} {} {now} {incarnation}", not_after.0);
                // Certificates are told apart by their serials here: what the nodes show has no pin.
                let pin = CertificatePin { fingerprint: [0; 32], key: [0; 32] };
                let signed = Signed { cert_pem, serial, not_after, pin, issuer: RootId([0; 8]) };
                self.authority_step(place, authority::Input::Signed(step, Ok(signed)));
            }
            authority::Effect::Propose { step, command } => {
                self.trace.whisper(self.time.now(), || format!("the authority proposes {:?}", command.changes));
                self.propose(place, Asker::Authority { incarnation, step }, command, Duration::from_secs(5));
            }
            authority::Effect::CompareClocks => {} // its clocks are never compared
            authority::Effect::CatchUp(_) => {}    // every newer copy is handed in anyway
            authority::Effect::Answer(ask, answer) => {
                let Some((caller, node)) = self.authority(place).and_then(|a| a.asks.remove(&ask)) else { return };
                if self.liar_answered(caller.ask, answer.is_ok()) {
                    return;
                }
                let pem = answer.map(|a| match a {
                    authority::Answer::Signed(reply) => reply.cert_pem,
                    authority::Answer::Joined(JoinReply::Joined { cert_pem, .. }) => cert_pem,
                    _ => String::new(),
                });
                if let (Some(node), Err(error)) = (node, &pem) {
                    self.trace.whisper(self.time.now(), || format!("{node} gets no certificate: {}", error.message));
                }
                if let (Some(node), Ok(text)) = (node, &pem)
                    && let Some((certificate, _)) = read_certificate(node, text)
                {
                    self.judge_signed(place, node, certificate.not_after);
                }
                self.reply(place, caller, Answered::Certificate(pem));
            }
            authority::Effect::WakeAt(at) => {
                let at = self.moment(place, at);
                self.time.at(at, Event::AuthorityWoke { place, incarnation });
            }
        }
    }

    pub(crate) fn authority_step_ended(
        &mut self,
        place: Place,
        incarnation: u32,
        step: authority::StepId,
        result: Result<Applied, ProposeError>,
    ) {
        if self.authority(place).is_some_and(|a| a.incarnation == incarnation) {
            self.authority_step(place, authority::Input::Proposed(step, result.map(|a| a.revision)));
        }
    }
}
