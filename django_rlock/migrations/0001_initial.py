from django.db import migrations, models


class Migration(migrations.Migration):
    """Gives the model without a table its content type, for permissions and the log."""

    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Lock",
            fields=[
                (
                    "id",
                    models.CharField(max_length=1000, primary_key=True, serialize=False, verbose_name="alias and name"),
                ),
            ],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "managed": False,
                "default_permissions": (),
                "permissions": [
                    ("view_lock", "Can view locks, their holders and who waits for them"),
                    ("force_release_lock", "Can free a lock that someone else holds"),
                    ("view_stack", "Can see in which calls the holder of a lock is"),
                ],
            },
        ),
    ]
