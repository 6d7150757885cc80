//! Load on an etcd cluster as `muster bench` puts it on Muster, and the comparison of both: the helper of `tests/etcd/run`.

mod api;
mod load;
mod report;

use std::net::TcpListener;
use std::process::ExitCode;

/// A result, or what to print.
type Outcome<T> = Result<T, String>;

const USAGE: &str = "usage: muster-etcd-bench ports NUMBER
       muster-etcd-bench wait ENDPOINTS
       muster-etcd-bench load ENDPOINTS cas|read CLIENTS SECONDS
       muster-etcd-bench report <MEASURED
ENDPOINTS: URLs of all members, separated by commas";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["ports", number] => ports(number),
        ["wait", endpoints] => load::wait(endpoints),
        ["load", endpoints, op, clients, seconds] => load::run(endpoints, op, clients, seconds),
        ["report"] => report::run(),
        _ => Err(USAGE.to_owned()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Prints that many different free ports of this machine.
fn ports(number: &str) -> Outcome<()> {
    let number: usize = number.parse().map_err(|_| USAGE.to_owned())?;
    let bind = |_| TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no port is free: {error}"));
    let bound = (0..number).map(bind).collect::<Outcome<Vec<_>>>()?;
    for listener in bound {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        println!("{}", address.port());
    }
    Ok(())
}
