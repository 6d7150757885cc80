//! What a candidate does with its campaign, of which there is one at most.
//!
//! Owns        nothing: the campaign is a value, and its actor holds it.
//! Inputs      the campaign as it is; whether one is wanted, and with which timing of the lease; whether an action is running.
//! Outputs     the next [`CampaignStep`].
//! Invariants  another timing of the lease interrupts no action: the campaign begins again once none is running.

/// The campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CampaignState {
    None,
    /// `outdated`: with another timing of the lease than the one in force.
    Running {
        outdated: bool,
    },
    /// It was asked to end; nothing starts before it has.
    Ending,
}

/// What to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CampaignStep {
    Keep,
    Begin,
    End,
    /// Decide again once no action is running.
    AwaitIdle,
}

impl CampaignState {
    pub fn step(self, wanted: bool, is_acting: bool) -> CampaignStep {
        match self {
            Self::None if wanted => CampaignStep::Begin,
            Self::Running { .. } if !wanted => CampaignStep::End,
            Self::Running { outdated: true } if is_acting => CampaignStep::AwaitIdle,
            Self::Running { outdated: true } => CampaignStep::End,
            Self::None | Self::Running { .. } | Self::Ending => CampaignStep::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn campaign_follows_what_is_wanted_and_spares_an_action() {
        use CampaignStep::{AwaitIdle, Begin, End, Keep};
        const NEW: CampaignState = CampaignState::Running { outdated: false };
        const OLD: CampaignState = CampaignState::Running { outdated: true };
        for (state, wanted, is_acting, step) in [
            (CampaignState::None, false, false, Keep),
            (CampaignState::None, true, false, Begin),
            // An action of an earlier term ends meanwhile.
            (CampaignState::None, true, true, Begin),
            (NEW, true, false, Keep),
            (NEW, true, true, Keep),
            (NEW, false, false, End),
            (NEW, false, true, End),
            (OLD, true, false, End),
            (OLD, true, true, AwaitIdle),
            (OLD, false, false, End),
            (OLD, false, true, End),
            (CampaignState::Ending, true, false, Keep),
            (CampaignState::Ending, false, true, Keep),
        ] {
            assert_eq!(state.step(wanted, is_acting), step, "{state:?} {wanted} {is_acting}");
        }
    }
}
