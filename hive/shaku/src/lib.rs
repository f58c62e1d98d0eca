//! A bridge from shaku components to hive cells.
//!
//! A component written for [shaku] becomes a provider of a hive by one more derive: `ShakuDeps` reads the existing
//! `#[shaku(inject)]` attributes and declares the component's dependencies to the hive, so that missing objects and
//! cycles are found before anything is built, as for any other cell. Its `Arc<dyn Trait>` fields come from any
//! provider, shaku component or hive constructor; `Vec` and `HashMap` fields come from hive groups.
//!
//! ```
//! use std::sync::Arc;
//!
//! use hive::prelude::*;
//! use hive_shaku::{Shaku, ShakuDeps, component};
//! use shaku::{Component, Interface};
//!
//! trait Clock: Interface {
//!     fn now(&self) -> u64;
//! }
//! trait Api: Interface {
//!     fn call(&self) -> String;
//! }
//!
//! #[derive(Component, ShakuDeps)]
//! #[shaku(interface = Clock)]
//! struct Fixed {
//!     #[shaku(default = 42)]
//!     time: u64,
//! }
//! impl Clock for Fixed {
//!     fn now(&self) -> u64 {
//!         self.time
//!     }
//! }
//!
//! #[derive(Component, ShakuDeps)]
//! #[shaku(interface = Api)]
//! struct ApiImpl {
//!     #[shaku(inject)]
//!     clock: Arc<dyn Clock>,
//!     port: u16,
//! }
//! impl Api for ApiImpl {
//!     fn call(&self) -> String {
//!         format!("{} on {}", self.clock.now(), self.port)
//!     }
//! }
//!
//! #[derive(hive::Config)]
//! struct ApiConfig {
//!     #[flag(default = 9234)]
//!     api_port: u16,
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let cells = module("legacy", "Components written for shaku", [
//!     component::<Fixed>(), // all parameters have defaults
//!     config::<ApiConfig>(),
//!     provide(|api: Shaku<ApiImpl>, config: Config<ApiConfig>| api.build(ApiImplParameters { port: config.api_port })),
//! ]);
//! let mut hive = TestHive::needing::<dyn Api>(cells);
//! hive.start().await;
//! assert_eq!(hive.get::<dyn Api>().call(), "42 on 9234");
//! hive.stop().await;
//! # });
//! ```
//!
//! An interface of shaku has the supertrait `Interface`. For a trait of a cell that does not depend on shaku, declare a
//! subtrait `trait Both: TheCells + Interface {}`, implemented for all types that are both: a component has `dyn Both`
//! as its interface, and a constructor converts `Arc<dyn Both>` to `Arc<dyn TheCells>`. A plain type may be injected as
//! it is.
//!
//! A whole shaku `module!` needs no bridge: build it in a constructor and `resolve()` its exports. Building in shaku is
//! synchronous and infallible; a panic in it is an error of the constructor.

#![forbid(unsafe_code)]

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use hive::constructor::{Absent, Cx, Deps};
use hive::{Cell, Group, Param, provide};
pub use hive_derive::ShakuDeps;
use shaku::{
    Component, HasComponent, HasComponentMap, HasComponents, Interface, Module, ModuleBuildContext,
    ModuleBuilder,
};

/// The dependencies of a component, known before it is built; derived.
pub trait ShakuDeps: 'static {
    /// Returns the injected fields, in order.
    fn deps() -> Vec<Dep>;
}

/// One injected field of a component.
pub struct Dep {
    declare: fn(&mut Deps),
    extract: fn(&mut Cx<'_>, &mut Bag) -> Result<(), Absent>,
}

impl Dep {
    /// Returns a field of type `Arc<I>`.
    pub fn one<I: Interface + ?Sized>() -> Self {
        Dep { declare: <Arc<I>>::deps, extract: |cx, bag| <Arc<I>>::extract(cx).map(|one| bag.put(one)) }
    }

    /// Returns a field of type `Vec<Arc<I>>`: the hive's group of `Arc<I>`.
    pub fn all<I: Interface + ?Sized>() -> Self {
        Dep {
            declare: <Group<Arc<I>>>::deps,
            extract: |cx, bag| <Group<Arc<I>>>::extract(cx).map(|group| bag.put(group.0)),
        }
    }

    /// Returns a field of type `HashMap<K, Arc<I>>`: the hive's group of `(K, Arc<I>)`.
    pub fn map<K: Clone + Eq + Hash + Send + Sync + 'static, I: Interface + ?Sized>() -> Self {
        Dep {
            declare: <Group<(K, Arc<I>)>>::deps,
            extract: |cx, bag| {
                let group = <Group<(K, Arc<I>)>>::extract(cx)?;
                bag.put(group.into_iter().collect::<HashMap<K, Arc<I>>>());
                Ok(())
            },
        }
    }
}

/// The injected values by the types of their fields.
#[derive(Default)]
struct Bag(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Bag {
    fn put<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    /// Returns an injected value. Panics if a `ShakuDeps` written by hand omits a field; the hive reports that as the
    /// constructor's error.
    fn get<T: 'static>(&self) -> &T {
        let value = self.0.get(&TypeId::of::<T>()).and_then(|value| value.downcast_ref());
        value.unwrap_or_else(|| panic!("{} is injected but not among `ShakuDeps`", type_name::<T>()))
    }
}

/// The shaku module in which components of a hive are built. It contains their declared dependencies.
pub struct Container {
    bag: Arc<Bag>,
    context: Mutex<Option<ModuleBuildContext<Container>>>,
}

/// The injected values of one component on their way through shaku.
pub struct Injected(Arc<Bag>);

impl Module for Container {
    type Submodules = Injected;

    fn build(context: ModuleBuildContext<Self>) -> Self {
        Container { bag: context.submodules().0.clone(), context: Mutex::new(Some(context)) }
    }
}

impl<I: Interface + ?Sized> HasComponent<I> for Container {
    fn build_component(context: &mut ModuleBuildContext<Self>) -> Arc<I> {
        context.submodules().0.get::<Arc<I>>().clone()
    }

    fn resolve(&self) -> Arc<I> {
        self.bag.get::<Arc<I>>().clone()
    }

    fn resolve_ref(&self) -> &I {
        self.bag.get::<Arc<I>>()
    }
}

impl<I: Interface + ?Sized> HasComponents<I> for Container {
    fn build_components(context: &mut ModuleBuildContext<Self>) -> Vec<Arc<I>> {
        context.submodules().0.get::<Vec<Arc<I>>>().clone()
    }

    fn resolve_all(&self) -> &[Arc<I>] {
        self.bag.get::<Vec<Arc<I>>>()
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, I: Interface + ?Sized> HasComponentMap<K, I>
    for Container
{
    fn build_component_map(context: &mut ModuleBuildContext<Self>) -> HashMap<K, Arc<I>> {
        context.submodules().0.get::<HashMap<K, Arc<I>>>().clone()
    }

    fn resolve_map(&self) -> &HashMap<K, Arc<I>> {
        self.bag.get::<HashMap<K, Arc<I>>>()
    }
}

/// The dependencies of component `C`, as one parameter of a hive constructor.
pub struct Shaku<C> {
    bag: Bag,
    component: PhantomData<fn() -> C>,
}

impl<C: ShakuDeps> Param for Shaku<C> {
    fn deps(deps: &mut Deps) {
        for dep in C::deps() {
            (dep.declare)(deps);
        }
    }

    fn extract(cx: &mut Cx<'_>) -> Result<Self, Absent> {
        let mut bag = Bag::default();
        for dep in C::deps() {
            (dep.extract)(cx, &mut bag)?;
        }
        Ok(Shaku { bag, component: PhantomData })
    }
}

impl<C: Component<Container>> Shaku<C> {
    /// Builds the component with the given parameters.
    pub fn build(self, parameters: C::Parameters) -> Arc<C::Interface> {
        let injected = Injected(Arc::new(self.bag));
        let container = ModuleBuilder::<Container>::with_submodules(injected).build();
        let context = container.context.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut context = context.expect("a module that was just built has its context");
        Arc::from(C::build(&mut context, parameters))
    }
}

/// Returns a cell that provides a component whose parameters all have defaults.
#[track_caller]
pub fn component<C: Component<Container> + ShakuDeps>() -> Cell {
    provide(|shaku: Shaku<C>| shaku.build(C::Parameters::default()))
}
