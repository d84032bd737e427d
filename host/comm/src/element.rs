use castnet_wire::control::DataType;

mod sealed {
    pub trait Sealed {}
}

/// A type that collectives work on, of those common in EPIC and MPI. Little endian in memory and on the wire.
pub trait Element: sealed::Sealed + bytemuck::Pod + PartialEq + std::fmt::Debug + Send + 'static {
    /// The type's code on the wire.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $wire:ident),*) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DATA_TYPE: DataType = DataType::$wire;
            }
        )*
    };
}

elements! {
    f32 => F32, half::f16 => F16, half::bf16 => Bf16, f64 => F64,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64
}

#[cfg(not(target_endian = "little"))]
compile_error!("elements travel as they are in memory: little endian machines only");
