//! ONNX files: the part of the format that tree ensembles use (`onnx.proto3` of the ONNX project, with its field numbers).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use prost::Message;

use crate::error::{Error, Result};

mod size;

/// The largest file that is read. Trained models fit up to 6 MiB, a forest of a thousand trees: above that their memory, which
/// [`size`] limits, is too large.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// `ModelProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) metadata_props: Vec<Entry>,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<Node>,
}

/// `NodeProto`: one operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int64, tag = "3")]
    pub(crate) i: i64,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) s: Vec<u8>,
    #[prost(float, repeated, tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "9")]
    pub(crate) strings: Vec<Vec<u8>>,
}

/// Reads the bytes of a model file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let fail = |source| Error::File { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let length = file.metadata().map_err(fail)?.len().min(FILE_BYTES_MAX);
    let mut bytes = Vec::with_capacity(usize::try_from(length + 1).unwrap_or(0));
    // Reading one byte more than allowed detects a file that is too long, even if it grows meanwhile.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::damaged(path, format!("the file is longer than the limit of {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

impl Model {
    /// Decodes a model. The error names the problem.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        size::check(bytes)?;
        Self::decode(bytes).map_err(|error| format!("not an ONNX model: {error}"))
    }

    /// Returns the value of a metadata key.
    pub(crate) fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata_props.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    }
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// Returns an attribute's integers, empty if it is missing.
    pub(crate) fn ints(&self, name: &str) -> &[i64] {
        self.attribute(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// Returns an attribute's floats, empty if it is missing.
    pub(crate) fn floats(&self, name: &str) -> &[f32] {
        self.attribute(name).map_or(&[], |attribute| &attribute.floats)
    }

    /// Returns an attribute's strings, empty if it is missing.
    pub(crate) fn strings(&self, name: &str) -> &[Vec<u8>] {
        self.attribute(name).map_or(&[], |attribute| &attribute.strings)
    }

    /// Returns an attribute's single string.
    pub(crate) fn string(&self, name: &str) -> Option<&[u8]> {
        self.attribute(name).map(|attribute| attribute.s.as_slice())
    }

    /// Returns an attribute's single integer.
    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i)
    }

    /// Returns whether the attribute exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.attribute(name).is_some()
    }
}
