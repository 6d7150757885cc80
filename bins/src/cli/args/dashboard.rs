//! The arguments of `muster dashboard`.

use clap::Args;

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Port on loopback [default: a free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Only print the link instead of opening a browser
    #[arg(long)]
    pub no_open: bool,
    /// Offer actions: promote, demote, remove, rotate, restart, transfer leadership. Otherwise the pages change nothing
    #[arg(long)]
    pub actions: bool,
    /// Another name under which a browser may ask, such as that of a tunnel's other end
    #[arg(long, value_name = "NAME:PORT", value_parser = parse_host)]
    pub allow_host: Vec<String>,
}

/// As browsers send it: in lower case, without a scheme.
fn parse_host(text: &str) -> Result<String, String> {
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._[]:".contains(&b));
    match text.rsplit_once(':') {
        Some((name, port)) if is_name(name) && port.parse::<u16>().is_ok() => Ok(text.to_ascii_lowercase()),
        _ => Err("expected NAME:PORT, as a browser asks for it".to_owned()),
    }
}
