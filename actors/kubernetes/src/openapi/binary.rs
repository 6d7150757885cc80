//! A version 2 document in protobuf, as older releases of kubectl read it (`openapi.v2.Document` of gnostic).
//!
//! Written by hand: the served documents use a dozen of its sixty messages, each with a few fields. The field numbers
//! are from its published definition.

use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::Value;

/// A message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(mut self, tag: u32, bytes: &[u8]) -> Self {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
        self
    }
    fn inner(self, tag: u32, message: Self) -> Self {
        self.bytes(tag, &message.0)
    }
    /// A text, if there is one.
    fn text(self, tag: u32, text: &Value) -> Self {
        match text.as_str() {
            Some(text) => self.bytes(tag, text.as_bytes()),
            None => self,
        }
    }
    /// Every text of a list.
    fn texts(self, tag: u32, texts: &Value) -> Self {
        texts.as_array().into_iter().flatten().fold(self, |message, text| message.text(tag, text))
    }
    fn flag(mut self, tag: u32, flag: &Value) -> Self {
        if flag.as_bool() == Some(true) {
            encode_key(tag, WireType::Varint, &mut self.0);
            encode_varint(1, &mut self.0);
        }
        self
    }
    /// A message for each entry of a map: its name, and the message made from its value.
    fn entries(self, tag: u32, map: &Value, value: fn(&Value) -> Self) -> Self {
        map.as_object().into_iter().flatten().fold(self, |message, (name, of)| {
            let entry = Self::default().bytes(1, name.as_bytes()).inner(2, value(of));
            message.inner(tag, entry)
        })
    }
    /// The message made from a value, if there is one.
    fn with(self, tag: u32, value: &Value, make: fn(&Value) -> Self) -> Self {
        if value.is_null() { self } else { self.inner(tag, make(value)) }
    }
    /// The extensions among an object's keys. Their values are YAML, of which JSON is a subset.
    fn extensions(self, tag: u32, of: &Value) -> Self {
        let extensions = of.as_object().into_iter().flatten().filter(|(key, _)| key.starts_with("x-"));
        extensions.fold(self, |message, (name, value)| {
            let any = Self::default().bytes(2, value.to_string().as_bytes());
            message.inner(tag, Self::default().bytes(1, name.as_bytes()).inner(2, any))
        })
    }
}

pub(super) fn document(json: &Value) -> Vec<u8> {
    let info = Message::default().text(1, &json["info"]["title"]).text(2, &json["info"]["version"]);
    let paths = Message::default().entries(2, &json["paths"], path);
    let definitions = Message::default().entries(1, &json["definitions"], schema);
    let document = Message::default().text(1, &json["swagger"]).inner(2, info);
    document.inner(8, paths).inner(9, definitions).0
}

fn path(json: &Value) -> Message {
    let methods = [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")];
    let message = methods
        .into_iter()
        .fold(Message::default(), |message, (tag, method)| message.with(tag, &json[method], operation));
    parameters(message, 9, &json["parameters"])
}

fn operation(json: &Value) -> Message {
    let message = Message::default().text(3, &json["description"]);
    let message = message.texts(6, &json["produces"]).texts(7, &json["consumes"]);
    let responses = Message::default().entries(1, &json["responses"], response);
    parameters(message, 8, &json["parameters"]).inner(9, responses).extensions(13, json)
}

fn parameters(message: Message, tag: u32, list: &Value) -> Message {
    list.as_array()
        .into_iter()
        .flatten()
        .fold(message, |message, of| message.inner(tag, Message::default().inner(1, parameter(of))))
}

fn parameter(json: &Value) -> Message {
    if json["in"] == "body" {
        let body = Message::default().text(2, &json["name"]).text(3, &json["in"]).flag(4, &json["required"]);
        return Message::default().inner(1, body.with(5, &json["schema"], schema));
    }
    let of = Message::default().flag(1, &json["required"]).text(2, &json["in"]);
    let of = of.text(3, &json["description"]).text(4, &json["name"]);
    let (tag, of) = match json["in"].as_str() {
        Some("query") => (3, of.text(6, &json["type"])),
        _ => (4, of.text(5, &json["type"])),
    };
    Message::default().inner(2, Message::default().inner(tag, of))
}

fn response(json: &Value) -> Message {
    let item = |of: &Value| Message::default().inner(1, schema(of));
    let response = Message::default().text(1, &json["description"]).with(2, &json["schema"], item);
    Message::default().inner(1, response)
}

fn schema(json: &Value) -> Message {
    let one = |of: &Value| Message::default().inner(1, schema(of));
    let kind = |of: &Value| Message::default().text(1, of);
    let properties = |of: &Value| Message::default().entries(1, of, schema);
    let message = Message::default().text(1, &json["$ref"]).text(2, &json["format"]).text(4, &json["description"]);
    let message = message.with(21, &json["additionalProperties"], one).with(22, &json["type"], kind);
    message.with(23, &json["items"], one).with(25, &json["properties"], properties).extensions(31, json)
}
