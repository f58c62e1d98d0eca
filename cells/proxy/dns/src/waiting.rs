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

    /// Removes a request.
    pub(crate) fn remove(&mut self, id: u16) {
        self.requests.remove(&id);
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

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}
