//! What a message of an actor has: a name, and often a port for its answer.

/// A reply port. Dropped without an answer: the asker sees a closed port.
pub type Reply<T> = ractor::RpcReplyPort<T>;

/// Derives the name of each variant: `#[strum(serialize_all = "snake_case")]` gives it the form that the live tree shows, and
/// `#[strum(transparent)]` the name of the message inside.
pub use strum::IntoStaticStr as Named;

/// A message with a name, for logs, spans and the live tree.
pub trait Named {
    /// The name of the variant.
    fn name(&self) -> &'static str;
}

impl<M> Named for M
where
    for<'a> &'a M: Into<&'static str>,
{
    fn name(&self) -> &'static str {
        self.into()
    }
}
