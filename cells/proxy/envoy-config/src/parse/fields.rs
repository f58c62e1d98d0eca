//! Access to fields of messages by their names.

use envoy_api::reflect::{DynamicMessage, MapKey, Value};

/// Returns the text of a field; empty if it is none.
pub(super) fn text(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    value.as_deref().and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
}

pub(super) fn set_text(message: &mut DynamicMessage, field: &str, text: impl Into<String>) {
    message.set_field_by_name(field, Value::String(text.into()));
}

/// Returns the message of a field, if the field is set.
pub(super) fn child(message: &DynamicMessage, field: &str) -> Option<DynamicMessage> {
    if !message.has_field_by_name(field) {
        return None;
    }
    message.get_field_by_name(field)?.as_message().cloned()
}

/// Returns the message of a field, to be changed; an unset field becomes an empty message.
pub(super) fn child_mut<'m>(message: &'m mut DynamicMessage, field: &str) -> Option<&'m mut DynamicMessage> {
    message.get_field_by_name_mut(field)?.as_message_mut()
}

/// Returns the messages of a repeated field, to be changed.
pub(super) fn list_mut<'m>(message: &'m mut DynamicMessage, field: &str) -> Option<&'m mut Vec<Value>> {
    message.get_field_by_name_mut(field)?.as_list_mut()
}

/// Returns an entry of a map with texts as keys.
pub(super) fn entry(message: &DynamicMessage, field: &str, key: &str) -> Option<DynamicMessage> {
    let map = message.get_field_by_name(field)?;
    map.as_map()?.get(&MapKey::String(key.to_owned()))?.as_message().cloned()
}

pub(super) fn set_entry(message: &mut DynamicMessage, field: &str, key: &str, value: DynamicMessage) {
    if let Some(map) = message.get_field_by_name_mut(field).and_then(Value::as_map_mut) {
        map.insert(MapKey::String(key.to_owned()), Value::Message(value));
    }
}

/// Sets a field that wraps a scalar (`google.protobuf.UInt32Value`), if it is unset.
pub(super) fn wrap_u32(message: &mut DynamicMessage, field: &str, number: u32) {
    if !message.has_field_by_name(field)
        && let Some(wrapper) = child_mut(message, field)
    {
        wrapper.set_field_by_name("value", Value::U32(number));
    }
}
