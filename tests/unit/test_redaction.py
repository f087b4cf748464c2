"""No password is shown, whatever it consists of."""

import dataclasses
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from django_rlock._core.text import redacted, shown

SECRET = "Zq7"
SCHEMES = st.sampled_from(["redis", "rediss", "unix", "amqp+ssl"])
NAMES = st.text("abc.-_", max_size=5)
RAW = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]) | st.sampled_from("/@%?&=:#'\",[]"), max_size=8
)
PASSWORDS = st.builds("".join, st.tuples(RAW, st.just(SECRET), RAW))
PASSWORDS_IN_VALUES = st.builds("".join, st.tuples(st.text(), st.just(SECRET), st.text()))
QUERY_NAMES = st.sampled_from(["password", "PASSWORD", "ssl_password", "%70assword", "sentinel_passwd"])
WORDS = st.text(st.characters(exclude_characters="@&?="))


@given(SCHEMES, NAMES, PASSWORDS)
@example("redis", "", f"a/{SECRET}@b%")
@example("redis", "me", f"a?password={SECRET}")
def test_user_and_password_before_the_host(scheme, user, password):
    told = redacted(f"{scheme}://{user}:{password}@host:6379/0")
    assert told in {f"{scheme}://***@host:6379/0", f"{scheme}://***@***"}


@given(SCHEMES, NAMES, PASSWORDS)
def test_an_encoded_password_leaves_the_rest_as_it_was(scheme, user, password):
    url = f"{scheme}://{user}:{quote(password, safe='')}@host:6379/0?db=1"
    assert redacted(url) == f"{scheme}://***@host:6379/0?db=1"


@given(SCHEMES, QUERY_NAMES, PASSWORDS, st.sampled_from(["?", "?db=1&"]))
@example("redis", "password", f"a@{SECRET}", "?")
def test_password_in_the_query(scheme, name, password, before):
    assert SECRET not in redacted(f"{scheme}://host:6379{before}{name}={password.replace('&', '%26')}&protocol=3")


@given(WORDS, SCHEMES, PASSWORDS, WORDS)
def test_a_url_within_a_text(before, scheme, password, after):
    told = redacted(f"{before} {scheme}://:{quote(password)}@host/0 {after}")
    assert told == f"{before} {scheme}://***@host/0 {after}"


@given(st.lists(st.builds("{}://:{}@host".format, SCHEMES, PASSWORDS), min_size=2))
def test_several_urls_within_a_text(urls):
    assert SECRET not in redacted(" and ".join(urls))
    assert SECRET not in redacted(",".join(urls))
    assert SECRET not in redacted(repr(urls))


NO_PORT = st.text("abc-_~%/:'\",", max_size=3)


@given(SCHEMES, NAMES, NO_PORT, PASSWORDS)
@example("redis", "", "6379", SECRET)
@example("redis", "me", "6379-", SECRET)
@example("redis", "me", "1/", SECRET)
@example("redis", "me", "1#", SECRET)
def test_password_before_a_host_that_is_missing(scheme, user, before, password):
    assume("?" not in password and "://" not in password)
    told = redacted(f"{scheme}://{user}:{before}{password}".replace("@", ""))
    assert told == f"{scheme}://{user}:***"


@pytest.mark.parametrize("before", ["", "me"])
def test_numeric_password_before_a_host_that_is_missing(before):
    assert redacted(f"redis://{before}:123456") == f"redis://{before}:***"
    assert redacted("redis://:6379") == "redis://:***"


@pytest.mark.parametrize(
    "text",
    [
        *("redis://host:6379", "redis://host:6379/0?db=1", "redis://[::1]:6379", "redis://[::1]", "unix:///a:b"),
        *("redis://a:1,redis://b:2", "redis://a:1;redis://b:2/0", "['redis://a:1', \"redis://b:2\"]"),
        *(
            "Not reached: redis://a:1.",
            "redis://a: no reply",
            "{'redis://a': {}}",
            "redis://a:1: no reply (redis://b:2).",
        ),
    ],
)
def test_ports_are_shown(text):
    assert redacted(text) == text


@given(st.text())
def test_a_text_without_urls_stays(text):
    assume("://" not in text and "=" not in text)
    assert redacted(text) == text


@given(SCHEMES, PASSWORDS)
@example("redis", f"{SECRET}&=")
def test_once_is_enough(scheme, password):
    told = redacted(f"{scheme}://:{password}@host/0?password={password}")
    assert redacted(told) == told


URLS = st.builds("{}://{}:{}@host/0".format, SCHEMES, NAMES, PASSWORDS_IN_VALUES)
KEYS = st.sampled_from(["PASSWORD", "password", "SECRET_KEY", "auth_token", "Passphrase"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc /:", max_size=5)


def containers(items):
    return (
        st.lists(items, max_size=3)
        | st.lists(items, max_size=3).map(tuple)
        | st.dictionaries(st.text("abc", max_size=3) | URLS, items, max_size=3)
        | st.dictionaries(KEYS, items | PASSWORDS_IN_VALUES, max_size=2)
    )


@given(st.recursive(URLS | URLS.map(str.encode) | st.frozensets(URLS, max_size=2) | PLAIN, containers, max_leaves=10))
def test_passwords_in_values_of_settings(value):
    assert SECRET not in shown(value)


@given(st.recursive(PLAIN | st.binary(), lambda items: st.lists(items) | st.dictionaries(st.text("abc"), items)))
def test_values_without_passwords_are_shown_as_they_are(value):
    assume("://" not in repr(value))
    assert shown(value) == repr(value)


def test_an_object_that_tells_a_url():
    @dataclasses.dataclass
    class Address:
        url: str

    assert SECRET not in shown([Address(f"redis://:{SECRET}@host")])


def test_redis_pys_text_where_no_sentinel_replies():
    """As redis-py 6.4 writes it."""
    text = (
        "No master found for 'mymaster' : "
        "Redis<<redis.connection.ConnectionPool(<redis.connection.Connection(host=one,port=1,password={0})>)>"
        " - ConnectionError('Error 111 connecting to one:1. Connection refused.'), "
        "Redis<<redis.connection.ConnectionPool(<redis.connection.Connection(password={0},host=two,port=1)>)>"
        " - ConnectionError('Error 111 connecting to two:1. Connection refused.')"
    )
    told = redacted(text.format(SECRET))
    assert told.startswith("No master found for 'mymaster' : Redis<<")
    assert told.endswith("(host=one,port=1,password=***")


NAMES_OF_SECRETS = st.sampled_from(["password", "PASSWORD", "ssl_password", "auth_token", "secret-key"])
ANY_PASSWORDS = PASSWORDS | PASSWORDS_IN_VALUES


FORMS = st.sampled_from(["{}={}", "({}={},host=h)", "<Pool(<Connection({}={},port=1)>)>"])


@given(NAMES_OF_SECRETS, ANY_PASSWORDS, FORMS)
@example("password", f"'a',{SECRET}", "({}={},host=h)")
def test_password_after_its_name(name, password, form):
    told = redacted(f"It failed: {form.format(name, password)}")
    assert SECRET not in told
    assert redacted(told) == told


@given(NAMES_OF_SECRETS, ANY_PASSWORDS, st.sampled_from([str, repr, lambda text: repr(repr(text) + "'")]))
def test_password_in_the_repr_of_options(name, password, write):
    for text in (write({"host": "h", name: password}), write([f"{name}={password!r}", "x"])):
        assert SECRET not in redacted(f"It failed: {text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Options(db=1, password='x')", "Options(db=1, password=***"),
        ('{"password": "it\'s", "db": 1}', '{"password": ***, "db": 1}'),
        ("{'password': b'x'}", "{'password': ***}"),
        ("Connection.__init__() got an unexpected keyword argument 'password'", None),
        ("invalid username-password pair or user is disabled.", None),
        ("<Connection(host=h,port=1)>", None),
        ("<Connection(password=<REDACTED>,host=h)> - no reply", None),
        ("<Connection(password=<REDACTED>,ssl_password=x,host=h)>", "<Connection(password=<REDACTED>,ssl_password=***"),
    ],
)
def test_what_is_left_around_named_secrets(text, expected):
    assert redacted(text) == (expected or text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("redis://:x y@host", "'redis://***'"),
        (["redis://:x@one", "redis://:y@two"], "['redis://***@one', 'redis://***@two']"),
        ({"OPTIONS": {"PASSWORD": ["x"], "db": 1}}, "{'OPTIONS': {'PASSWORD': '***', 'db': 1}}"),
        (("unix:///run/redis.sock?db=0",), "('unix:///run/redis.sock?db=0',)"),
        (b"redis://:x@one", "b'redis://***@one'"),
        ({"b", "a", "redis://:x@one"}, "{'a', 'b', 'redis://***@one'}"),
    ],
)
def test_what_is_left(value, expected):
    assert shown(value) == expected


@pytest.mark.parametrize("part", ["://", "?a=", "://a:1,", "?secret=", "://[", "pass", "'pass", "token-"])
@pytest.mark.parametrize("before", ["", "'"])
def test_a_long_text_is_read_once(before, part):
    # It would take minutes to read each rest of the text again.
    assert redacted(before + part * (1_000_000 // len(part)))
