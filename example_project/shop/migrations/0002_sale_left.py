from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="sale",
            name="left",
            field=models.PositiveIntegerField("left, where the database counts", default=0, editable=False),
            preserve_default=False,
        ),
        migrations.AlterField(
            model_name="sale",
            name="lane",
            field=models.CharField(
                choices=[
                    ("none", "No lock"),
                    ("naive", "SET NX, short expiry"),
                    ("paused", "SET NX, long expiry"),
                    ("database", "The database alone"),
                    ("locked", "@distributed_lock"),
                ],
                max_length=10,
            ),
        ),
    ]
