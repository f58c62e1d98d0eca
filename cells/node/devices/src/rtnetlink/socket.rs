//! A socket of rtnetlink, with the requests of the files beside this one.

use netlink::{Connection, Message, Protocol};
use netlink_packet_core::{DecodeError, NetlinkDeserializable};
use netlink_packet_route::RouteNetlinkMessage;

use crate::NetlinkError;

/// A blocking handle on rtnetlink of the thread's network namespace.
#[derive(Debug)]
pub struct Netlink {
    connection: Connection,
}

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { connection: Connection::open(Protocol::Route)? })
    }

    /// Requests a change and waits for its acknowledgement; `describe` names the request in an error.
    pub(crate) fn request(
        &mut self,
        describe: impl Fn() -> String,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        self.connection.request(&message, flags).map_err(|source| failed(describe(), source))
    }

    /// Requests one object; `None` if it does not exist.
    pub(crate) fn get(
        &mut self,
        describe: impl Fn() -> String,
        message: RouteNetlinkMessage,
    ) -> Result<Option<RouteNetlinkMessage>, NetlinkError> {
        match self.connection.get(&message, |answer| parse(&answer)) {
            Err(error) if error.is_not_found() => Ok(None),
            found => found.map_err(|source| failed(describe(), source)),
        }
    }

    /// Lists all objects that `message` requests, converting each as it arrives, since lists can be long. Complete, or
    /// an error.
    pub(crate) fn dump<T, I: IntoIterator<Item = T>>(
        &mut self,
        request: &str,
        message: &RouteNetlinkMessage,
        convert: impl Fn(RouteNetlinkMessage) -> I,
    ) -> Result<Vec<T>, NetlinkError> {
        let convert = |answer: Message<'_>| parse(&answer).map(&convert);
        self.connection.dump(message, convert).map_err(|source| failed(request.to_owned(), source))
    }
}

/// Decodes a message of rtnetlink.
pub(crate) fn decode(message: &Message<'_>) -> Result<RouteNetlinkMessage, DecodeError> {
    RouteNetlinkMessage::deserialize(&message.header, message.body)
}

fn parse(answer: &Message<'_>) -> Result<RouteNetlinkMessage, netlink::Error> {
    decode(answer).map_err(|error| answer.undecodable(error))
}

fn failed(request: String, source: netlink::Error) -> NetlinkError {
    NetlinkError::Request { request, source }
}
