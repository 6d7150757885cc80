//! The managers of a cluster as the source of a link's connections.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use muster_gateway::Dialer;
use muster_messages::frames::{BoxStream, Framed};
use muster_messages::protocol::Service;
use muster_messages::{ErrorBody, ErrorCode};

use crate::link::{Connect, locked, unreachable};

/// The delay before the next manager is dialled while one has not answered.
const DIAL_STAGGER: Duration = Duration::from_millis(150);

/// Managers over TLS, in turn.
pub struct Managers {
    dialer: Dialer,
    /// The next one first.
    addrs: Arc<Mutex<VecDeque<String>>>,
}

impl Managers {
    /// Uses a dialer with an identity.
    pub fn new(dialer: Dialer, addrs: impl IntoIterator<Item = String>) -> Self {
        Self { dialer, addrs: Arc::new(Mutex::new(addrs.into_iter().collect())) }
    }
}

impl Connect for Managers {
    fn connect(&self) -> BoxFuture<'static, Result<Framed<BoxStream>, ErrorBody>> {
        let (dialer, order) = (self.dialer.clone(), Arc::clone(&self.addrs));
        let mut addrs = locked(&order).clone().into_iter();
        async move {
            let mut trouble = unreachable("no manager is known".to_owned());
            let dial = |addr: String| {
                let dialer = &dialer;
                async move { (dialer.dial(&addr, Service::Api, None).await, addr) }
            };
            let mut dials: FuturesUnordered<_> = addrs.next().map(dial).into_iter().collect();
            while !dials.is_empty() {
                tokio::select! {
                    Some((dialed, addr)) = dials.next() => match dialed {
                        Ok(dialed) => {
                            let mut order = locked(&order);
                            order.retain(|known| *known != addr);
                            order.push_back(addr); // the last to be dialled next time
                            return Ok(dialed.stream);
                        }
                        Err(error) => {
                            let code = error.refusal().map_or(ErrorCode::Unreachable, |refusal| refusal.reason.code());
                            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                            trouble = ErrorBody::new(code, format!("{error}{}", cause.unwrap_or_default()));
                            dials.extend(addrs.next().map(dial));
                        }
                    },
                    // Without a long wait: a frozen manager accepts and never greets.
                    () = tokio::time::sleep(DIAL_STAGGER), if addrs.len() > 0 => dials.extend(addrs.next().map(dial)),
                }
            }
            Err(trouble)
        }
        .boxed()
    }

    fn learn(&self, managers: Vec<String>) {
        if !managers.is_empty() {
            *locked(&self.addrs) = managers.into();
        }
    }
}
