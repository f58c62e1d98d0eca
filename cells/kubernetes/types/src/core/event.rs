//! Events, which `kubectl describe` shows with the object that they are about.

use smol_str::SmolStr;

use crate::slim::slim;
use crate::{ObjectMeta, resource::resource};

slim! {
    /// An occurrence at an object, or several equal ones.
    pub struct Event {
        /// Name, labels and so on.
        always pub metadata: ObjectMeta,
        /// The object.
        always pub involved_object: ObjectReference,
        /// The occurrence in one word, such as `PacketDrop`.
        pub reason: SmolStr,
        /// The occurrence in a sentence.
        pub message: SmolStr,
        /// The program that has seen it.
        always pub source: EventSource,
        /// When it occurred first.
        pub first_timestamp: Option<SmolStr>,
        /// When it occurred last.
        pub last_timestamp: Option<SmolStr>,
        /// How often it has occurred.
        pub count: i32,
        /// `Normal` or `Warning`.
        #[serde(rename = "type")]
        pub kind: SmolStr,
        /// The kind of program that has seen it.
        always pub reporting_component: SmolStr,
        /// Which of these programs it was.
        always pub reporting_instance: SmolStr,
    }

    /// An object that an event is about.
    pub struct ObjectReference {
        /// Its kind.
        pub kind: SmolStr,
        /// Its namespace.
        pub namespace: SmolStr,
        /// Its name.
        pub name: SmolStr,
        /// Its uid.
        pub uid: SmolStr,
        /// Its group and version.
        pub api_version: SmolStr,
    }

    /// A program of a node.
    pub struct EventSource {
        /// The program.
        pub component: SmolStr,
        /// The node.
        pub host: SmolStr,
    }
}

resource!(Event);
