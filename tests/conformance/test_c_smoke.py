from tests.support import *
async def test_c01(session):
    """C01"""
    r = await session.run("x=40\nx+2")
    assert 42 == r.value
    assert 42 == await session.value("x+2")
