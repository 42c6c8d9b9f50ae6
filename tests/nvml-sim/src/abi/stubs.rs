//! Functions that programs look up when they load the library, and that a simulated GPU does not support. Their
//! arguments are ignored.

macro_rules! unsupported {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> ::std::ffi::c_uint {
                let target = $crate::abi::Target::default();
                $crate::abi::enter(stringify!($name), target, &|| {
                    $crate::session::Call::new()?;
                    Err($crate::code::Code::NOT_SUPPORTED)
                })
            }
        )*
    };
}

crate::symbols::with_unsupported!(unsupported);
