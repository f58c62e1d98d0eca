//! Compiles the messages and services, with attributes for their JSON form, and the table of fields for field masks.
//! protox reads the definitions in Rust, so that no protoc has to be installed.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use prost::Message as _;
use prost_build::Config;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// Messages of the package `flow` that are parts of requests.
const NOT_PRINTED: &str = "Filter";

/// Enums with the Rust types that have their names.
const ENUMS: [(&str, &str); 17] = [
    (".flow.AuthType", "flow::AuthType"),
    (".flow.Verdict", "flow::Verdict"),
    (".flow.FlowType", "flow::FlowType"),
    (".flow.L7FlowType", "flow::L7FlowType"),
    (".flow.SCTPChunkType", "flow::SctpChunkType"),
    (".flow.IPVersion", "flow::IpVersion"),
    (".flow.Tunnel.Protocol", "flow::tunnel::Protocol"),
    (".flow.TrafficDirection", "flow::TrafficDirection"),
    (".flow.TraceObservationPoint", "flow::TraceObservationPoint"),
    (".flow.TraceReason", "flow::TraceReason"),
    (".flow.DropReason", "flow::DropReason"),
    (".flow.DebugCapturePoint", "flow::DebugCapturePoint"),
    (".flow.SocketTranslationPoint", "flow::SocketTranslationPoint"),
    (".flow.LostEventSource", "flow::LostEventSource"),
    (".flow.AgentEventType", "flow::AgentEventType"),
    (".flow.DebugEventType", "flow::DebugEventType"),
    (".relay.NodeState", "relay::NodeState"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["observer.proto", "peer.proto", "health.proto"], ["proto"])?;
    let mut config = Config::new();
    config.include_file("protos.rs");
    for (package, message) in messages(&files) {
        if package == "relay" || package == "flow" && !message.name().contains(NOT_PRINTED) {
            json(&mut config, package, message);
        }
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("fields.rs"), fields(&files)?)?;
    std::fs::write(out.join("descriptors.bin"), descriptors(&files).encode_to_vec())?;
    std::fs::write(out.join("types.rs"), types(&files)?)?;
    tonic_prost_build::configure().build_transport(false).compile_fds_with_config(files, config)?;
    Ok(())
}

fn messages(files: &FileDescriptorSet) -> impl Iterator<Item = (&str, &DescriptorProto)> {
    files.file.iter().flat_map(|file| file.message_type.iter().map(move |message| (file.package(), message)))
}

/// Returns the definitions without their comments, which clients of reflection do not need.
fn descriptors(files: &FileDescriptorSet) -> FileDescriptorSet {
    let mut files = files.clone();
    files.file.iter_mut().for_each(|file| file.source_code_info = None);
    files
}

/// Derives the JSON form of a message: names of the schema, unset fields left out.
fn json(config: &mut Config, package: &str, message: &DescriptorProto) {
    let path = format!(".{package}.{}", message.name());
    for oneof in &message.oneof_decl {
        config.type_attribute(format!("{path}.{}", oneof.name()), "#[derive(serde::Serialize)]");
    }
    // An attribute of a oneof would be one of its variants, too, so that serde cannot flatten it: these messages have
    // their form in `json.rs`.
    let is_derived = message.oneof_decl.is_empty();
    if is_derived {
        config.message_attribute(&path, "#[derive(serde::Serialize)]");
    }
    for field in &message.field {
        let name = field.name();
        let rename = format!("#[serde(rename = \"{name}\")]");
        match field.oneof_index {
            Some(index) => {
                let oneof = message.oneof_decl[index as usize].name();
                config.field_attribute(format!("{path}.{oneof}.{name}"), rename);
            }
            None if !is_derived => {}
            None => {
                let path = format!("{path}.{name}");
                config.field_attribute(&path, rename);
                let unset = "#[serde(skip_serializing_if = \"crate::json::is_unset\")]";
                config.field_attribute(&path, unset);
                if let Some(attribute) = encoding(field) {
                    config.field_attribute(&path, attribute);
                }
            }
        }
    }
}

/// Returns the attribute of a field that serde would print in another form.
fn encoding(field: &FieldDescriptorProto) -> Option<String> {
    let with = |path: &str| Some(format!("#[serde(serialize_with = \"crate::json::{path}\")]"));
    match field.r#type() {
        Type::Enum => {
            let (_, name) = ENUMS.iter().find(|(path, _)| *path == field.type_name())?;
            with(&format!("name::<crate::{name}, _>"))
        }
        Type::Uint64 | Type::Int64 => with("text"),
        Type::Message if field.type_name() == ".google.protobuf.Timestamp" => with("time"),
        Type::Message if field.type_name() == ".google.protobuf.Any" => Some("#[serde(skip)]".to_owned()),
        _ => None,
    }
}

/// Returns the fields of all messages of flows: name, number, and the message that the field contains.
fn fields(files: &FileDescriptorSet) -> Result<String, std::fmt::Error> {
    let mut out = String::from("&[\n");
    for (package, message) in messages(files).filter(|(package, _)| *package == "flow") {
        writeln!(out, "    (\".{package}.{}\", &[", message.name())?;
        for field in &message.field {
            // A mask ends at repeated fields and at well-known types.
            let inner = match field.label() {
                Label::Repeated => "",
                _ if field.type_name().starts_with(".flow.") && field.r#type() == Type::Message => {
                    field.type_name()
                }
                _ => "",
            };
            writeln!(out, "        (\"{}\", {}, \"{inner}\"),", field.name(), field.number())?;
        }
        writeln!(out, "    ]),")?;
    }
    out.push(']');
    Ok(out)
}

/// Returns the table by which JSON is read: messages with their fields, and enums with their values.
fn types(files: &FileDescriptorSet) -> Result<String, std::fmt::Error> {
    let (mut parsed, mut enums) = (String::new(), String::new());
    for file in files.file.iter().filter(|file| file.package() == "flow") {
        file.enum_type.iter().try_for_each(|kind| values(&mut enums, ".flow", kind))?;
        for message in &file.message_type {
            typed(&mut parsed, &mut enums, ".flow", message)?;
        }
    }
    Ok(format!("Types {{ messages: &[\n{parsed}], enums: &[\n{enums}] }}"))
}

/// Adds a message with the types inside of it.
fn typed(
    parsed: &mut String,
    enums: &mut String,
    scope: &str,
    message: &DescriptorProto,
) -> std::fmt::Result {
    let path = format!("{scope}.{}", message.name());
    message.enum_type.iter().try_for_each(|kind| values(enums, &path, kind))?;
    message.nested_type.iter().try_for_each(|inner| typed(parsed, enums, &path, inner))?;
    writeln!(parsed, "    (\"{path}\", &[")?;
    for field in &message.field {
        let kind = match field.r#type() {
            Type::Bool => "Kind::Bool".to_owned(),
            Type::String => "Kind::Text".to_owned(),
            Type::Uint32 => "Kind::Number(0, u32::MAX as i128)".to_owned(),
            Type::Int32 => "Kind::Number(i32::MIN as i128, i32::MAX as i128)".to_owned(),
            Type::Uint64 => "Kind::Number(0, u64::MAX as i128)".to_owned(),
            Type::Int64 => "Kind::Number(i64::MIN as i128, i64::MAX as i128)".to_owned(),
            Type::Enum => format!("Kind::Enum({:?})", field.type_name()),
            Type::Message => match field.type_name() {
                ".google.protobuf.Timestamp" => "Kind::Time".to_owned(),
                ".google.protobuf.BoolValue" => "Kind::Wrapper(&Kind::Bool)".to_owned(),
                name if name.starts_with(".flow.") => format!("Kind::Message({name:?})"),
                _ => continue,
            },
            _ => continue,
        };
        let names = [field.name(), field.json_name()];
        let repeated = field.label() == Label::Repeated;
        writeln!(parsed, "        ({names:?}, {}, {repeated}, {kind}),", field.number())?;
    }
    writeln!(parsed, "    ]),")
}

/// Adds an enum.
fn values(enums: &mut String, scope: &str, kind: &EnumDescriptorProto) -> std::fmt::Result {
    let values: Vec<_> = kind.value.iter().map(|value| (value.name(), value.number())).collect();
    writeln!(enums, "    (\"{scope}.{}\", &{values:?}),", kind.name())
}
