//! Conversion of arguments and results.

use std::error::Error;

use mcctl_base::{ErrorCode, ObjectKey};
use mcctl_store::{OperationFailures, StoreError};
use mcctl_sys::env::{Env, RealEnv};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::session::SessionError;

/// An object's key: `str`, or `bytes`.
pub(crate) struct Key(pub ObjectKey);

impl<'a, 'py> FromPyObject<'a, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Key> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Key(ObjectKey::from(text.to_cow()?.as_bytes())));
        }
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Key(ObjectKey::from(bytes.as_bytes()))),
            Err(_) => Err(PyTypeError::new_err(format!("a key must be str, not {}", object.get_type().name()?))),
        }
    }
}

/// Returns the keys as the type of the client, without the wrapper for arguments from Python.
pub(crate) fn keys(keys: Vec<Key>) -> Vec<ObjectKey> {
    keys.into_iter().map(|key| key.0).collect()
}

/// An address or a size. A negative number is a `TypeError`, as in the wheel.
#[derive(Clone, Copy)]
pub(crate) struct Natural(pub u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Natural {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Natural> {
        object.extract().map(Natural).map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(object.py()) {
                return PyTypeError::new_err("an address or size must be an integer from 0 to 2**64 - 1");
            }
            error
        })
    }
}

impl Natural {
    /// Returns the number as a size; a size that no memory has if it is too large.
    pub(crate) fn size(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A value that supports the buffer protocol. It must be contiguous, and is not copied.
pub(crate) struct Value(PyUntypedBuffer);

impl<'a, 'py> FromPyObject<'a, 'py> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Value> {
        let buffer = PyUntypedBuffer::get(&object)?;
        if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
            return Err(PyTypeError::new_err("the buffer is not contiguous; pass bytes(value)"));
        }
        Ok(Value(buffer))
    }
}

impl Value {
    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> u64 {
        self.0.buf_ptr() as u64
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len_bytes()
    }
}

/// The code of a call without result: 0 or the code of the error.
pub(crate) fn code<T>(result: Result<T, StoreError>) -> i32 {
    result.map_or_else(|error| error_code(&error), |_| 0)
}

/// The number of bytes, or the code of the error.
pub(crate) fn bytes_or_code(result: Result<usize, StoreError>) -> i64 {
    match result {
        Ok(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
        Err(error) => i64::from(error_code(&error)),
    }
}

/// The result of each object of a batch of `count`, or the same error for each.
pub(crate) fn each<T>(
    count: usize,
    results: Result<Result<Vec<Result<T, StoreError>>, StoreError>, SessionError>,
) -> Vec<Result<T, StoreError>> {
    match flat(results) {
        Ok(results) => results,
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

/// Joins the error of a session with that of its operation.
pub(crate) fn flat<T>(result: Result<Result<T, StoreError>, SessionError>) -> Result<T, StoreError> {
    match result {
        Ok(result) => result,
        Err(SessionError::Store(error)) => Err(error),
        Err(SessionError::Runtime(why)) => {
            tracing::error!("{why}");
            Err(StoreError::Refused { what: "the runtime", code: ErrorCode::INTERNAL_ERROR })
        }
    }
}

/// The code of upstream's client for this error. Logs the cause, without the key, because callers
/// see only the code. Missing and existing keys are not logged. The client itself logs transfers.
pub(crate) fn error_code(error: &StoreError) -> i32 {
    static FAILURES: OperationFailures = OperationFailures::new();
    let code = error.code();
    let cause = || with_causes(&error.without_key());
    let is_warned = !matches!(code, ErrorCode::OBJECT_NOT_FOUND | ErrorCode::OBJECT_ALREADY_EXISTS)
        && !matches!(error, StoreError::Transfer { .. });
    match is_warned.then(|| FAILURES.due(RealEnv::new().now(), code)).flatten() {
        Some(0) => tracing::warn!(code = code.0, "an operation failed: {}", cause()),
        Some(omitted) => tracing::warn!(code = code.0, omitted, "operations failed, the last one: {}", cause()),
        None => tracing::debug!(code = code.0, "an operation failed: {}", cause()),
    }
    code.0
}

/// Returns the text of an error and of its causes.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}
