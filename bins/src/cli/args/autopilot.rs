//! The arguments of `muster cluster`, `muster autopilot` and `muster node drain`.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use muster_messages::millis;
use muster_messages::wire::AutopilotSettings;

use crate::cli::duration::{parse_duration, parse_lifetime};

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Declare the number of managers: the autopilot then replaces a dead manager with a worker
    #[command(after_help = SET_HELP)]
    Set(SetArgs),
}

const SET_HELP: &str = "Settings:
  managers=N             1, 3, 5 or 7; `managers=off` withdraws the declaration
  replace-after=TIME     how long a manager must be down before it is replaced: 1m to 7d [default: 10m]
  stabilize=TIME         how long a worker must be ready before it is promoted: 5s to 1h [default: 30s]
  eligible=K=V[,K=V]     labels that a worker must have; empty: every worker may be promoted
  zone-label=K           spread managers over the values of this label; empty: do not
  shrink=true|false      demote surplus managers [default: false]

Settings that are not named keep their values. Each manager has the cluster's root key: if some machines are trusted less, set `eligible`.

Example: muster cluster set managers=3 zone-label=rack
Example: muster cluster set managers=5 --dry-run";

#[derive(Debug, Args)]
pub struct SetArgs {
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// Only show what would be done first
    #[arg(long)]
    pub dry_run: bool,
    /// Change only a declaration of this generation (else exit 8)
    #[arg(long, value_name = "N")]
    pub generation: Option<u64>,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Id, unique prefix of an id, or unique name
    pub node: String,
    /// How long the drain takes, at most 7d [default: until `node undrain`]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_lifetime)]
    pub duration: Option<Duration>,
    /// Another node takes its place as manager first. Needs a declared number of managers
    #[arg(long)]
    pub replace: bool,
}

/// What is asked for.
#[derive(Debug, PartialEq)]
pub enum Declared {
    Off,
    Settings(AutopilotSettings),
}

impl SetArgs {
    /// The settings, or what is wrong with them.
    pub fn declared(&self) -> Result<Declared, String> {
        let mut settings = AutopilotSettings::default();
        let mut off = false;
        for text in &self.settings {
            let (key, value) =
                text.split_once('=').ok_or_else(|| format!("{text:?}: expected KEY=VALUE, such as managers=3"))?;
            let wrong = |why: String| format!("{key}: {why}");
            let time = || parse_duration(value).map(millis).map_err(wrong);
            match key {
                "managers" if value == "off" => off = true,
                "managers" => {
                    settings.managers =
                        Some(value.parse().map_err(|_| wrong(format!("{value:?} is not a number of managers")))?)
                }
                "replace-after" => settings.replace_after_ms = Some(time()?),
                "stabilize" => settings.stabilize_ms = Some(time()?),
                "eligible" => settings.eligible = Some(labels(value).map_err(wrong)?),
                "zone-label" => settings.zone_label = Some(value.to_owned()),
                "shrink" => {
                    settings.shrink = Some(value.parse().map_err(|_| wrong("expected true or false".to_owned()))?)
                }
                _ => {
                    return Err(format!(
                        "{key:?}: unknown; the settings are managers, replace-after, stabilize, eligible, zone-label, shrink"
                    ));
                }
            }
        }
        match off {
            true if self.settings.len() > 1 => {
                Err("managers=off withdraws everything: name no other settings".to_owned())
            }
            true => Ok(Declared::Off),
            false => Ok(Declared::Settings(settings)),
        }
    }
}

fn labels(text: &str) -> Result<BTreeMap<String, String>, String> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(format!("{pair:?}: expected LABEL=VALUE")),
        })
        .collect()
}

#[derive(Debug, Subcommand)]
pub enum AutopilotCommand {
    /// Show what is declared, what the leader sees, and what it does next
    State {
        /// Refresh every second, in place on a terminal; Ctrl-C stops
        #[arg(long)]
        watch: bool,
    },
    /// Show for each node whether it would be promoted, and why not
    Explain {
        /// Id, unique prefix of an id, or unique name [default: all]
        node: Option<String>,
    },
    /// Begin no further role changes. A change in progress is finished
    Pause {
        /// The reason, shown to other operators
        #[arg(long, value_name = "TEXT", default_value = "by hand")]
        why: String,
    },
    /// End a pause
    Resume,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(settings: &[&str]) -> Result<Declared, String> {
        let settings = settings.iter().map(|text| (*text).to_owned()).collect();
        SetArgs { settings, dry_run: false, generation: None }.declared()
    }

    #[test]
    fn settings_are_read_by_name() {
        let all = [
            "managers=5",
            "replace-after=2m",
            "stabilize=5s",
            "eligible=disk=ssd,rack=a",
            "zone-label=rack",
            "shrink=true",
        ];
        let Ok(Declared::Settings(read)) = declared(&all) else { panic!() };
        let eligible = [("disk", "ssd"), ("rack", "a")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let expected = AutopilotSettings {
            managers: Some(5),
            eligible: Some(eligible.into()),
            zone_label: Some("rack".to_owned()),
            replace_after_ms: Some(120_000),
            stabilize_ms: Some(5_000),
            shrink: Some(true),
        };
        assert_eq!(read, expected);
        assert_eq!(declared(&["managers=off"]), Ok(Declared::Off));
    }

    #[test]
    fn wrong_settings_name_what_is_possible() {
        for (settings, expected) in [
            (&["managers"][..], "expected KEY=VALUE"),
            (&["manager=3"], "unknown; the settings are managers"),
            (&["managers=three"], "not a number of managers"),
            (&["managers=off", "shrink=true"], "name no other settings"),
            (&["shrink=yes"], "true or false"),
            (&["eligible=ssd"], "expected LABEL=VALUE"),
            (&["replace-after=soon"], "replace-after: "),
        ] {
            let refused = declared(settings).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
