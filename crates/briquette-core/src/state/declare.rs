/// Declares the saved state of a component, and so implements [`Stateful`](crate::state::Stateful) for it.
///
/// Every line is a field and its [entry](crate::state::fields), or several fields and [`numbers`](crate::state::fields::numbers).
/// With `as it`, entries can depend on the component's settings. Loading first checks all entries, in order, and then sets
/// them. If a check fails, no field has changed, except components, which load during their check. The hooks are optional, in this order:
///
/// - `check: fn(&Self, &State) -> Result<(), StateError>;` makes additional checks.
/// - `after_load`, `after_commit` and `after_discard` are `fn(&mut Self)`, for everything that is derived from the state.
///
/// The [module of states](crate::state) has an example.
#[macro_export]
macro_rules! stateful {
    (
        impl $(<$($parameter:ident : $bound:tt $(+ $more:tt)*),+>)? Stateful for $type:ty { $($lines:tt)* }
        $($hooks:tt)*
    ) => {
        $crate::stateful! {
            impl $(<$($parameter : $bound $(+ $more)*),+>)? Stateful for $type as component { $($lines)* }
            $($hooks)*
        }
    };
    (
        impl $(<$($parameter:ident : $bound:tt $(+ $more:tt)*),+>)? Stateful for $type:ty as $it:ident {
            $($field:tt : $entry:expr),* $(,)?
        }
        $(check: $check:expr;)?
        $(after_load: $after_load:expr;)?
        $(after_commit: $after_commit:expr;)?
        $(after_discard: $after_discard:expr;)?
    ) => {
        #[allow(unused_imports, unused_variables)]
        impl $(<$($parameter : $bound $(+ $more)*),+>)? $crate::state::Stateful for $type {
            fn save(&self, state: &mut $crate::state::State) {
                use $crate::state::{OnResize::*, fields::*};
                let $it = self;
                $($crate::stateful!(@save $field, $entry, self, state);)*
            }

            fn load(&mut self, state: &$crate::state::State) -> ::std::result::Result<(), $crate::error::StateError> {
                use $crate::state::{OnResize::*, fields::*};
                $({
                    let $it = &*self;
                    let entry = $entry;
                    $crate::stateful!(@read $field, entry, self, state);
                })*
                $({
                    let check: fn(&Self, &$crate::state::State) -> ::std::result::Result<(), $crate::error::StateError> = $check;
                    check(self, state)?;
                })?
                $({
                    let $it = &*self;
                    let entry = $entry;
                    $crate::stateful!(@set $field, entry, self, state);
                })*
                $({
                    let hook: fn(&mut Self) = $after_load;
                    hook(self);
                })?
                ::std::result::Result::Ok(())
            }

            fn commit(&mut self) {
                use $crate::state::{OnResize::*, fields::*};
                $({
                    let $it = &*self;
                    let entry = $entry;
                    $crate::stateful!(@commit $field, entry, self);
                })*
                $({
                    let hook: fn(&mut Self) = $after_commit;
                    hook(self);
                })?
            }

            fn discard(&mut self) {
                use $crate::state::{OnResize::*, fields::*};
                $({
                    let $it = &*self;
                    let entry = $entry;
                    $crate::stateful!(@discard $field, entry, self);
                })*
                $({
                    let hook: fn(&mut Self) = $after_discard;
                    hook(self);
                })?
            }
        }
    };
    (@save [$($field:ident),+], $entry:expr, $self:ident, $state:ident) => {
        $entry.save(&[$(&$self.$field),+], $state)
    };
    (@save $field:ident, $entry:expr, $self:ident, $state:ident) => {
        Field::save(&$entry, &$self.$field, $state)
    };
    (@read [$($field:ident),+], $entry:ident, $self:ident, $state:ident) => {
        $entry.read(&[$(&$self.$field),+], $state)?
    };
    (@read $field:ident, $entry:ident, $self:ident, $state:ident) => {
        Field::read(&$entry, &mut $self.$field, $state)?
    };
    (@set [$($field:ident),+], $entry:ident, $self:ident, $state:ident) => {
        $entry.set(&mut [$(&mut $self.$field),+], $state)?
    };
    (@set $field:ident, $entry:ident, $self:ident, $state:ident) => {
        Field::set(&$entry, &mut $self.$field, $state)?
    };
    (@$act:ident [$($field:ident),+], $entry:ident, $self:ident) => {};
    (@$act:ident $field:ident, $entry:ident, $self:ident) => {
        Field::$act(&$entry, &mut $self.$field)
    };
}
