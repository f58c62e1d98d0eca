//! Requests in flight on one socket to a server.

use std::collections::HashMap;

use tokio::sync::oneshot;

use crate::message::{Answer, Request, id};

/// Attempts to find an id that no other request of the socket has.
const ID_ATTEMPTS: usize = 5;

/// An answer, as received and as far as it is understood.
pub(crate) type Received = (Vec<u8>, Answer);

/// Requests that wait for their answers, by the id that they have at the server.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    requests: HashMap<u16, (Request, oneshot::Sender<Received>)>,
}

impl Waiting {
    /// Adds a request. It keeps its id, or gets a random one if another request has it. Returns `None` if there is no
    /// free id.
    pub(crate) fn add(&mut self, request: &Request) -> Option<(u16, oneshot::Receiver<Received>)> {
        let own = std::iter::once(request.id);
        let mut ids = own.chain(std::iter::repeat_with(rand::random).take(ID_ATTEMPTS));
        let id = ids.find(|id| !self.requests.contains_key(id))?;
        let (sender, receiver) = oneshot::channel();
        self.requests.insert(id, (request.clone(), sender));
        Some((id, receiver))
    }

    /// Removes a request after its receiver was dropped. If it was answered, another request may have got its id since.
    pub(crate) fn remove(&mut self, id: u16) {
        if self.requests.get(&id).is_some_and(|(_, sender)| sender.is_closed()) {
            self.requests.remove(&id);
        }
    }

    /// Passes a message to the request that it answers. Others are ignored: they may be forged.
    pub(crate) fn deliver(&mut self, message: &[u8]) {
        let Some(id) = id(message) else { return };
        let Some((request, _)) = self.requests.get(&id) else { return };
        match request.answer(message, id) {
            Ok(answer) => {
                if let Some((_, sender)) = self.requests.remove(&id) {
                    // An error: the request has been given up.
                    let _ = sender.send((message.to_vec(), answer));
                }
            }
            Err(error) => tracing::debug!(name = request.name, %error, "Ignoring a message of a DNS server"),
        }
    }

    /// Ends all requests with an error.
    pub(crate) fn fail(&mut self) {
        self.requests.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_the_id_of_an_answered_one_stays() {
        let query = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x02io\0\0\x01\0\x01";
        let (request, mut answer) = (Request::parse(query).unwrap(), query.to_vec());
        answer[2] |= 0x80;
        let mut waiting = Waiting::default();
        let (id, mut first) = waiting.add(&request).unwrap();
        waiting.deliver(&answer);
        assert!(first.try_recv().is_ok());
        // The client asks again with the same id before the first request has ended.
        let (again, mut second) = waiting.add(&request).unwrap();
        assert_eq!((id, again), (7, 7));
        waiting.remove(id);
        waiting.deliver(&answer);
        assert!(second.try_recv().is_ok());
        let (id, third) = waiting.add(&request).unwrap();
        drop(third);
        waiting.remove(id);
        assert!(waiting.requests.is_empty());
    }
}
