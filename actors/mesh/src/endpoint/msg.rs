//! The message that peers can send to the RPC endpoint: bytes, in a call.
//!
//! Why bytes, and a handwritten message trait: the derived decoder slices and panics on malformed input, and each panic
//! runs the panic hook. This one always succeeds; `EndpointContext` decodes the bytes with a limit and a `Result`.

use ractor::RpcReplyPort;
use ractor::message::{BoxedDowncastErr, SerializedMessage};

pub enum EndpointMsg {
    /// An encoded [`PeerEnvelope`](muster_messages::wire::PeerEnvelope); answered by an encoded
    /// [`PeerReply`](muster_messages::wire::PeerReply).
    Call(Vec<u8>, RpcReplyPort<Vec<u8>>),
    Unreadable,
}

impl ractor::Message for EndpointMsg {
    fn serializable() -> bool {
        true
    }
    fn serialize(self) -> Result<SerializedMessage, BoxedDowncastErr> {
        match self {
            EndpointMsg::Call(args, reply) => {
                Ok(SerializedMessage::Call { variant: "Call".to_owned(), args, reply, metadata: None })
            }
            EndpointMsg::Unreadable => Err(BoxedDowncastErr),
        }
    }
    fn deserialize(message: SerializedMessage) -> Result<Self, BoxedDowncastErr> {
        Ok(match message {
            SerializedMessage::Call { args, reply, .. } => EndpointMsg::Call(args, reply),
            _ => EndpointMsg::Unreadable,
        })
    }
}
