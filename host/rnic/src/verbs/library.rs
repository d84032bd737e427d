//! libibverbs, loaded on demand.
#![allow(unsafe_code)] // Fence: symbols of a shared library are given their C types here.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use libloading::Library;

use super::sys;
use crate::error::RnicError;

macro_rules! api {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The used functions, with their types in <infiniband/verbs.h>.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Api {
            fn look_up(library: &Library, name: &str) -> Result<Self, RnicError> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of the header for the symbol's newest version, which a look-up
                        // without a version returns. The library is never unloaded, so the pointer stays valid.
                        unsafe { library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>($symbol) }
                            .map(|symbol| *symbol)
                            .map_err(|error| missing(name, &error))?
                    },)*
                })
            }

            #[cfg(test)]
            pub(super) const SYMBOLS: &[&str] = &[$($symbol),*];
        }
    };
}

api! {
    get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut sys::Device;
    free_device_list = "ibv_free_device_list": fn(*mut *mut sys::Device);
    get_device_name = "ibv_get_device_name": fn(*mut sys::Device) -> *const c_char;
    open_device = "ibv_open_device": fn(*mut sys::Device) -> *mut sys::Context;
    close_device = "ibv_close_device": fn(*mut sys::Context) -> c_int;
    query_device = "ibv_query_device": fn(*mut sys::Context, *mut sys::DeviceAttr) -> c_int;
    query_port = "ibv_query_port": fn(*mut sys::Context, u8, *mut sys::PortAttr) -> c_int;
    get_async_event = "ibv_get_async_event": fn(*mut sys::Context, *mut sys::AsyncEvent) -> c_int;
    ack_async_event = "ibv_ack_async_event": fn(*mut sys::AsyncEvent);
    alloc_pd = "ibv_alloc_pd": fn(*mut sys::Context) -> *mut sys::Pd;
    dealloc_pd = "ibv_dealloc_pd": fn(*mut sys::Pd) -> c_int;
    reg_mr = "ibv_reg_mr": fn(*mut sys::Pd, *mut c_void, usize, c_int) -> *mut sys::Mr;
    dereg_mr = "ibv_dereg_mr": fn(*mut sys::Mr) -> c_int;
    create_comp_channel = "ibv_create_comp_channel": fn(*mut sys::Context) -> *mut sys::CompChannel;
    destroy_comp_channel = "ibv_destroy_comp_channel": fn(*mut sys::CompChannel) -> c_int;
    create_cq = "ibv_create_cq": fn(*mut sys::Context, c_int, *mut c_void, *mut sys::CompChannel, c_int) -> *mut sys::Cq;
    destroy_cq = "ibv_destroy_cq": fn(*mut sys::Cq) -> c_int;
    get_cq_event = "ibv_get_cq_event": fn(*mut sys::CompChannel, *mut *mut sys::Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = "ibv_ack_cq_events": fn(*mut sys::Cq, c_uint);
    create_qp = "ibv_create_qp": fn(*mut sys::Pd, *mut sys::QpInitAttr) -> *mut sys::Qp;
    destroy_qp = "ibv_destroy_qp": fn(*mut sys::Qp) -> c_int;
    modify_qp = "ibv_modify_qp": fn(*mut sys::Qp, *mut sys::QpAttr, c_int) -> c_int;
    query_qp = "ibv_query_qp": fn(*mut sys::Qp, *mut sys::QpAttr, c_int, *mut sys::QpInitAttr) -> c_int;
    wc_status_str = "ibv_wc_status_str": fn(c_uint) -> *const c_char;
}

fn missing(library: &str, error: &libloading::Error) -> RnicError {
    RnicError::NoVerbsLibrary {
        library: library.to_owned(),
        reason: match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

impl Api {
    pub(super) fn load(name: &str) -> Result<Arc<Self>, RnicError> {
        // SAFETY: this runs initializers of a shared library. Those of libibverbs only register its clean-up.
        // Another library is loaded only if the user names it.
        let library = unsafe { Library::new(name) }.map_err(|error| missing(name, &error))?;
        let api = Self::look_up(&library, name)?;
        // Never unloaded: loaded providers may have threads and exit handlers.
        std::mem::forget(library);
        Ok(Arc::new(api))
    }

    pub(super) fn status_text(&self, status: c_uint) -> Option<&'static str> {
        // SAFETY: any number is allowed.
        let text = unsafe { (self.wc_status_str)(status) };
        if text.is_null() {
            return None;
        }
        // SAFETY: ibv_wc_status_str(3) returns constants of the library, which is never unloaded.
        let text: &'static CStr = unsafe { CStr::from_ptr(text) };
        text.to_str().ok().filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn a_missing_library_is_named_with_advice() {
        let error = Api::load("/nowhere/libibverbs.so.1").err().expect("no library");
        assert!(matches!(&error, RnicError::NoVerbsLibrary { library, .. } if library.contains("/nowhere/")));
        assert!(error.to_string().contains("/nowhere/libibverbs.so.1"), "{error}");
        assert!(
            error
                .advice()
                .is_some_and(|a| a.contains("apt install ibverbs-providers libibverbs1"))
        );
    }

    #[test]
    fn a_library_without_verbs_is_refused() {
        let error = Api::load("libc.so.6").err().expect("it has no verbs");
        assert!(error.to_string().contains("ibv_"), "{error}");
    }

    /// Many functions exist in two versions: for programs of 2006 (IBVERBS_1.0) and for current ones.
    #[test]
    fn a_lookup_without_a_version_finds_the_newest() {
        const NEWEST: &[(&str, &str)] = &[
            ("ibv_create_comp_channel", "IBVERBS_1.0"),
            ("ibv_destroy_comp_channel", "IBVERBS_1.0"),
        ];
        let name = CString::new("libibverbs.so.1").expect("no zero inside");
        // SAFETY: as in `Api::load`.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            castnet_wrap_up::skip(
                "symbols of libibverbs",
                "libibverbs.so.1 is not installed (apt install libibverbs1)",
            );
            return;
        }
        for symbol in Api::SYMBOLS {
            let version = NEWEST
                .iter()
                .find(|(name, _)| name == symbol)
                .map_or("IBVERBS_1.1", |(_, version)| version);
            let (c_symbol, c_version) = (
                CString::new(*symbol).expect("text"),
                CString::new(version).expect("text"),
            );
            // SAFETY: the handle is open and the strings are zero-terminated. The addresses are compared, never called.
            let (plain, versioned) = unsafe {
                (
                    libc::dlsym(handle, c_symbol.as_ptr()),
                    libc::dlvsym(handle, c_symbol.as_ptr(), c_version.as_ptr()),
                )
            };
            assert!(!plain.is_null() && plain == versioned, "{symbol}@{version}");
        }
    }
}
